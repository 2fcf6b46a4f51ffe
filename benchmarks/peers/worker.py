"""The process of a peer: `python -m benchmarks.peers.worker`, see `txl_export.benchmarking.serving`.

Its "load" message holds "peer", "config" (of the model), the fields of `Start`, and "expected", the file that
the judge writes and the others are compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import JUDGE, peer_module
from benchmarks.peers.base import Start
from benchmarks.peers.check import check
from benchmarks.peers.memory import MadeMemory
from txl_export.benchmarking.serving import serve
from txl_export.config import ModelConfig

_NUMBERS = ("mem_len", "segment_len", "batch_size", "threads")


class Job:
    """A loaded peer, its calls and its check."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Load the peer of a "load" message; raises TxlError."""
        start = Start(
            checkpoint=Path(spec["checkpoint"]),
            built=Path(spec["built"]),
            scratch=Path(spec["scratch"]),
            **{name: spec[name] for name in _NUMBERS},
        )
        self._name, self._length, self._expected = spec["peer"], start.segment_len, Path(spec["expected"])
        config = ModelConfig.from_dict(spec["config"])
        self._memory = MadeMemory(config, start.mem_len, start.batch_size)
        self._rng = np.random.default_rng(0)
        self.peer = peer_module(self._name).load(start)
        self.memory_bytes = self.peer.memory_bytes

    def prepare(self) -> np.ndarray:
        """Random ids [B, L]."""
        shape = self._memory.batch_size, self._length
        return self._rng.integers(0, self._memory.config.vocab_size, shape)

    def call(self, prepared: np.ndarray) -> Any:
        """Read one segment."""
        return self.peer.call(prepared)

    def fill(self) -> int:
        """Give every stream a full memory, and check what the peer makes of it; raises ToleranceError."""
        check(self.peer, self._memory, self._length, self._expected, self._name == JUDGE)
        return self._memory.mem_len


if __name__ == "__main__":
    serve(Job)
