"""Makes what peers load, in a process of its own: `python -m benchmarks.peers.build PEER JOBS`.

JOBS is a JSON list of objects with "checkpoint", "out", "mem_len" and "segment_lens"; "out" is an empty folder.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path

from benchmarks.peers import peer_module


def main(peer: str, jobs: str) -> None:
    """Build one thing after the other."""
    warnings.simplefilter("ignore")  # of packages, to their own developers
    module = peer_module(peer)
    with contextlib.redirect_stdout(sys.stderr):
        for job in json.loads(jobs):
            module.build(Path(job["checkpoint"]), Path(job["out"]), job["mem_len"], job["segment_lens"])


if __name__ == "__main__":
    main(*sys.argv[1:])
