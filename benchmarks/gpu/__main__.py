"""`python -m benchmarks.gpu`: what `benchmarks/gpu.sh` starts."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.gpu import report, results
from benchmarks.gpu.plan import full_cases, tiny_cases
from benchmarks.gpu.run import Campaign, require
from benchmarks.shapes import ROOT
from txl_export.backends import GPU_BACKENDS
from txl_export.errors import InputError, TxlError
from txl_export.files import write_atomic

SECONDS, _DRY_SECONDS = 285.0, 600.0  # under five minutes; a dry run proves steps, however slow the machine
_INTERRUPTED = 130


@click.command()
@click.option("--backend", type=click.Choice(GPU_BACKENDS), default="tensorrt", show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=SECONDS, show_default=True, help="For all of it.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Folder of GPU.md and gpu.json.")
@click.option("--dry-run", is_flag=True, help="The same steps, tiny and without a GPU, into a temporary folder.")
def command(backend: str, seconds: float, output: Path | None, dry_run: bool) -> None:
    """Build, verify and time this package on a GPU beside PyTorch, and write the report."""
    if dry_run:
        place = output or Path(tempfile.mkdtemp(prefix="txl-gpu-dry-"))
        ours = backend if importlib.util.find_spec("tests") and importlib.util.find_spec("cuda") else None
        _run(ours, _DRY_SECONDS, place, dry=True)
        return
    if not math.isfinite(seconds):
        raise InputError(f"--seconds is {seconds}, expected a number of seconds")
    require(backend)
    _run(backend, seconds, output or ROOT / "benchmarks", dry=False)


def _run(backend: str | None, seconds: float, output: Path, dry: bool) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as e:  # before the minutes on the GPU, not after
        raise InputError(f"{output} cannot be made a folder ({e.strerror}): name another with --output") from None
    if not os.access(output, os.W_OK):
        raise InputError(f"{output} cannot be written: name another with --output")
    with tempfile.TemporaryDirectory(prefix="txl-gpu-") as folder:
        cases = tiny_cases() if dry else full_cases()
        campaign = Campaign(cases, backend, Path(folder), seconds, dry, lambda line: click.echo(line, err=True))
        try:
            run = campaign.run()
        except KeyboardInterrupt:
            run = campaign.run_so_far
    results.write(output / "gpu.json", run)
    write_atomic(output / "GPU.md", report.page(run).encode())
    click.echo(f"{len(run.timed)} rows, {len(run.missing)} steps missing: {output / 'GPU.md'}")


def main() -> int:
    """Run the command; errors raised on purpose become one line and their exit code."""
    try:
        command(standalone_mode=False)
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except click.Abort:
        return _INTERRUPTED
    except TxlError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
