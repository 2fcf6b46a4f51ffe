#!/bin/sh
# Builds, verifies and times this package on the GPU of this machine beside PyTorch, in under five minutes, and writes
# benchmarks/GPU.md. Exit codes: 0 done, 2 wrong use, 3 no GPU or a package missing. --dry-run needs neither.
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
exec "$python" -m benchmarks.gpu "$@"
