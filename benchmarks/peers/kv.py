"""Peer `kv`: this project's bundle with layout `kv`, one for each M."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.bundled import HEAD, Bundled
from txl_export.checkpoints import load_checkpoint


def build(checkpoint: Path, out: Path, mem_len: int, segment_lens: list[int]) -> None:
    """Export a graph for each segment length."""
    import txl_export

    txl_export.export(
        load_checkpoint(checkpoint),
        out,
        mem_len=mem_len,
        segment_lens=segment_lens,
        layout="kv",
        head=HEAD,
        cover=False,  # no call has another length
    )


load = Bundled
