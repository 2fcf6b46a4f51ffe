"""Peer `eager`: this package's reference model, called directly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.base import Start
from benchmarks.peers.hidden import made_hidden
from benchmarks.peers.memory import MadeMemory
from txl_export.checkpoints import load_checkpoint
from txl_export.layouts import memory_bytes
from txl_export.reference import Memory, TransformerXL


class Eager:
    """The reference and its memory."""

    def __init__(self, start: Start) -> None:
        """Load the checkpoint."""
        torch.set_num_threads(start.threads)
        checkpoint = load_checkpoint(start.checkpoint, overrides={"mem_len": start.mem_len})
        self.model = TransformerXL.from_checkpoint(checkpoint)
        self.memory_bytes = memory_bytes("hidden", checkpoint.config, start.mem_len)
        self._memory = self.model.initial_memory(start.batch_size)

    def call(self, ids: np.ndarray) -> Tensor:
        """See `Peer.call`."""
        with torch.inference_mode():
            log_probs, self._memory = self.model(torch.from_numpy(ids), self._memory)
        return log_probs

    def log_probs(self, answer: Tensor) -> np.ndarray:
        """See `Peer.log_probs`."""
        return answer.numpy()

    def remember(self, memory: MadeMemory) -> None:
        """See `Peer.remember`."""
        filled = torch.full((memory.batch_size,), memory.mem_len)
        self._memory = Memory(tuple(made_hidden(memory)), filled)


load = Eager
