"""Peer `compile`: `torch.compile` of the reference.

Its best case: memories are full from the first call, so that every shape is static, the whole call is one
graph, and nothing is ever compiled again. Compiling is part of the time to load and to the first answer.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.peers.base import Start
from benchmarks.peers.memory import MadeMemory
from txl_export.layouts import memory_bytes

# Read when torch is imported. Nothing compiled earlier is taken up, or the time to load would depend on the past.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes that outlives the compilation

BACKEND = "inductor"  # torch's default


class Compiled:
    """The compiled reference and its memory tensors."""

    def __init__(self, start: Start) -> None:
        """Load the checkpoint; the first call compiles."""
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(start.scratch / f"inductor-{os.getpid()}")
        import torch

        from benchmarks.peers.hidden import HiddenMemory

        torch.set_num_threads(start.threads)
        module = HiddenMemory(start.checkpoint)
        config = module.model.config
        self.memory_bytes = memory_bytes("hidden", config, start.mem_len)
        self._mems = [torch.zeros(start.batch_size, start.mem_len, config.d_model) for _ in range(config.n_layer)]
        self._run = torch.compile(module, fullgraph=True, dynamic=False, backend=BACKEND)
        self._torch = torch

    def call(self, ids: np.ndarray) -> object:
        """See `Peer.call`."""
        with self._torch.no_grad():
            log_probs, *self._mems = self._run(self._torch.from_numpy(ids), self._mems)
        return log_probs

    def log_probs(self, answer: object) -> np.ndarray:
        """See `Peer.log_probs`."""
        return np.asarray(answer)

    def remember(self, memory: MadeMemory) -> None:
        """See `Peer.remember`."""
        from benchmarks.peers.hidden import made_hidden

        self._mems = made_hidden(memory)


load = Compiled
