"""What a peer's module gives: what to build beforehand, and a loaded model whose calls are timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.peers.memory import MadeMemory


@dataclass(frozen=True)
class Start:
    """What a peer's process loads.

    Attributes:
        checkpoint: folder of the native checkpoint.
        built: folder that the peer's `build` filled; whatever for a peer that builds nothing.
        scratch: an existing folder for what is not needed afterwards.
        mem_len: memory length M in tokens.
        segment_len: tokens L of every call.
        batch_size: streams B.
        threads: CPU threads.
    """

    checkpoint: Path
    built: Path
    scratch: Path
    mem_len: int
    segment_len: int
    batch_size: int
    threads: int


class Peer(Protocol):
    """A loaded model with the memory of B streams.

    Attributes:
        memory_bytes: bytes of memory per stream.
    """

    memory_bytes: int

    def call(self, ids: np.ndarray) -> Any:
        """Read a segment, int64 [B, L], and remember it; what is timed. The answer holds all log-probabilities."""

    def log_probs(self, answer: Any) -> np.ndarray:
        """The natural log-probabilities in an answer, float32 [B, L, V]."""

    def remember(self, memory: MadeMemory) -> None:
        """Replace the memory."""


class PeerModule(Protocol):
    """A module of this package."""

    def build(self, checkpoint: Path, out: Path, mem_len: int, segment_lens: list[int]) -> None:
        """Write into the empty folder `out` what processes load."""

    def load(self, start: Start) -> Peer:
        """Import what the peer needs and load it."""
