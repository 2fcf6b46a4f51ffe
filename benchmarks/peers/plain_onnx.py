"""Peer `plain-onnx`: `torch.onnx.export` of the hidden-memory model as it is, run by ONNX Runtime.

One graph with symbolic B, L and M; memories go in and out of `session.run` as numpy arrays.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.base import Start
from benchmarks.peers.memory import MadeMemory
from txl_export.layouts import state_specs

_FILE = "model.onnx"
_EXAMPLE = (2, 3, 5)  # B, L and M of the example that is traced


def build(checkpoint: Path, out: Path, mem_len: int, segment_lens: list[int]) -> None:
    """Export once for all B, L and M."""
    del mem_len, segment_lens
    import torch

    from benchmarks.peers.hidden import HiddenMemory

    module = HiddenMemory(checkpoint)
    config, (B, L, M) = module.model.config, _EXAMPLE
    names = [f"mem_{n:02d}" for n in range(config.n_layer)]
    symbolic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        module,
        (torch.zeros(B, L, dtype=torch.int64), [torch.zeros(B, M, config.d_model) for _ in names]),
        out / _FILE,
        dynamic_shapes={"ids": symbolic, "mems": [symbolic for _ in names]},
        input_names=["ids", *names],
        output_names=["log_probs", *(f"new_{name}" for name in names)],
        dynamo=True,
        verbose=False,
    )


class PlainOnnx:
    """An ONNX Runtime session and the arrays that it is given."""

    def __init__(self, start: Start) -> None:
        """Load the graph; the first memory is zeros."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = start.threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(start.built / _FILE, options, providers=["CPUExecutionProvider"])
        inputs = {i.name: i.shape[-1] for i in self._session.get_inputs() if i.name != "ids"}
        shape = start.batch_size, start.mem_len
        self._mems = {name: np.zeros((*shape, width), np.float32) for name, width in inputs.items()}
        self.memory_bytes = sum(a[0].nbytes for a in self._mems.values())

    def call(self, ids: np.ndarray) -> np.ndarray:
        """See `Peer.call`."""
        log_probs, *new = self._session.run(None, {"ids": ids, **self._mems})
        self._mems = dict(zip(self._mems, new, strict=True))
        return log_probs

    def log_probs(self, answer: np.ndarray) -> np.ndarray:
        """See `Peer.log_probs`."""
        return answer

    def remember(self, memory: MadeMemory) -> None:
        """See `Peer.remember`."""
        specs = state_specs("hidden", memory.config, memory.mem_len)
        self._mems = {s.input: memory.streams(memory.rows(s.layer)) for s in specs}


load = PlainOnnx
