"""Peer `ring`: this project's bundle with layout `ring`, one for all M: each session chooses its own."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lengths import MEM_LENS, SEGMENT_LENS
from benchmarks.peers.bundled import HEAD, Bundled
from txl_export.checkpoints import load_checkpoint


def build(checkpoint: Path, out: Path, mem_len: int, segment_lens: list[int]) -> None:
    """Export a graph for each segment length; what is given as 0 or none, for all that are compared."""
    import txl_export

    txl_export.export(
        load_checkpoint(checkpoint),
        out,
        mem_len=mem_len or max(MEM_LENS),
        segment_lens=segment_lens or SEGMENT_LENS,
        layout="ring",
        head=HEAD,
    )


load = Bundled
