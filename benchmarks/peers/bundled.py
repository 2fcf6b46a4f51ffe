"""This project's bundles on ONNX Runtime, through the session that users have: what its peers share."""

from __future__ import annotations

import numpy as np

from benchmarks.peers.base import Start
from benchmarks.peers.memory import MadeMemory
from txl_export.benchmarking.worker import call_lengths, stream_bytes
from txl_export.bundle import Bundle
from txl_export.checkpoints import load_checkpoint
from txl_export.errors import InputError
from txl_export.layouts import layout_of, state_specs
from txl_export.runtime import Engine

HEAD = "log_probs"
# What each tensor holds of a remembered hidden state.
_WEIGHT_OF = {"key": "W_kE", "value": "W_v"}


class Bundled:
    """A session on a bundle whose memory holds keys and values."""

    def __init__(self, start: Start) -> None:
        """Load the bundle and the graphs for L tokens."""
        bundle = Bundle.open(start.built, check_files=False)  # hashed when it was built
        self._engine = Engine.load(bundle, "onnxruntime", start.mem_len, threads=start.threads)
        self._session = self._engine.session(start.batch_size)
        for length in call_lengths(self._session._streams, start.segment_len, last_only=False):
            self._engine.model.prepare(HEAD, length, start.batch_size)
        self._checkpoint, self._length = start.checkpoint, start.segment_len
        self.memory_bytes = stream_bytes(bundle, self._engine)
        self._out: np.ndarray | None = None

    def call(self, ids: np.ndarray) -> np.ndarray:
        """See `Peer.call`; answers share one buffer."""
        answer = self._session.feed(ids, self._length, HEAD, out=self._out)
        assert isinstance(answer, np.ndarray)
        self._out = answer
        return answer

    def log_probs(self, answer: np.ndarray) -> np.ndarray:
        """See `Peer.log_probs`."""
        return answer

    def remember(self, memory: MadeMemory) -> None:
        """See `Peer.remember`; raises InputError under pre-LN, whose keys are made of normalised states."""
        if memory.config.pre_lnorm:
            raise InputError("bundles cannot be given a made memory under pre-LN: none of the shapes has it")
        info = self._engine.info
        c, weights = memory.config, load_checkpoint(self._checkpoint).weights
        state = {"positions": np.full(memory.batch_size, info.start + memory.mem_len)}
        for spec in state_specs(layout_of(info.layout).ordered or info.layout, c, memory.mem_len):
            weight = weights[f"layers.{spec.layer}.attention.{_WEIGHT_OF[spec.input.rpartition('_')[0]]}"]
            kept = memory.rows(spec.layer) @ weight.T  # [M, H * d_head]
            heads = kept.reshape(memory.mem_len, c.n_head, c.d_head).transpose(1, 0, 2)
            state[spec.input] = memory.streams(heads, spec.row_axis)
        self._session._load(state)
