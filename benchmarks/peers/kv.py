"""Peer `kv`: this project's bundle with layout `kv` on ONNX Runtime, through the session that users have."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.base import Start
from benchmarks.peers.memory import MadeMemory
from txl_export.bundle import Bundle
from txl_export.checkpoints import load_checkpoint
from txl_export.errors import InputError
from txl_export.layouts import memory_bytes, state_specs
from txl_export.runtime import Engine

_HEAD = "log_probs"
# What each tensor holds of a remembered hidden state.
_WEIGHT_OF = {"key": "W_kE", "value": "W_v"}


def build(checkpoint: Path, out: Path, mem_len: int, segment_lens: list[int]) -> None:
    """Export a graph for each segment length."""
    import txl_export

    txl_export.export(
        load_checkpoint(checkpoint),
        out,
        mem_len=mem_len,
        segment_lens=segment_lens,
        layout="kv",
        head=_HEAD,
        cover=False,  # no call has another length
    )


class Kv:
    """A session on the bundle."""

    def __init__(self, start: Start) -> None:
        """Load the bundle and the graph for L tokens."""
        bundle = Bundle.open(start.built, check_files=False)  # hashed when it was built
        self._engine = Engine.load(bundle, "onnxruntime", threads=start.threads)
        self._engine.model.prepare(_HEAD, start.segment_len, start.batch_size)
        self._session = self._engine.session(start.batch_size)
        self._checkpoint, self._length = start.checkpoint, start.segment_len
        self.memory_bytes = memory_bytes("kv", self._engine.info.config, start.mem_len)
        self._out: np.ndarray | None = None

    def call(self, ids: np.ndarray) -> np.ndarray:
        """See `Peer.call`; answers share one buffer."""
        answer = self._session.feed(ids, self._length, _HEAD, out=self._out)
        assert isinstance(answer, np.ndarray)
        self._out = answer
        return answer

    def log_probs(self, answer: np.ndarray) -> np.ndarray:
        """See `Peer.log_probs`."""
        return answer

    def remember(self, memory: MadeMemory) -> None:
        """See `Peer.remember`; raises InputError under pre-LN, whose keys are made of normalised states."""
        if memory.config.pre_lnorm:
            raise InputError("peer 'kv' cannot be given a made memory under pre-LN: none of the shapes has it")
        c, weights = memory.config, load_checkpoint(self._checkpoint).weights
        state = {"positions": np.full(memory.batch_size, self._engine.info.start + memory.mem_len)}
        for spec in state_specs("kv", c, memory.mem_len):
            weight = weights[f"layers.{spec.layer}.attention.{_WEIGHT_OF[spec.input.rpartition('_')[0]]}"]
            kept = memory.rows(spec.layer) @ weight.T  # [M, H * d_head]
            heads = kept.reshape(memory.mem_len, c.n_head, c.d_head).transpose(1, 0, 2)
            state[spec.input] = memory.streams(heads, spec.row_axis)
        self._session._load(state)


load = Kv
