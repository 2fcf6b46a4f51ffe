"""Runs of the stand-in's engines: the plan's graph in ONNX Runtime, on the memory where it is."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from tests.standin.device import StandIn
from tests.standin.memory import GARBAGE, Code, CudaFault, Range
from tests.standin.plan_files import Plan, Tensor

if TYPE_CHECKING:
    from tests.standin.trt_context import IExecutionContext


@dataclass(frozen=True)
class Bound:
    """A tensor of a run, its shape and its place."""

    tensor: Tensor
    shape: tuple[int, ...]
    range: Range


@dataclass(frozen=True)
class Job:
    """A run as it was queued: later changes of the context do not reach it."""

    gpu: StandIn
    plan: Plan
    bound: Sequence[Bound]
    scratch: Range
    context: weakref.ref[IExecutionContext]

    def run(self) -> None:
        """Do it; raises CudaFault, for memory that is gone and for anything that ONNX Runtime says."""
        injected = self.gpu.count("engine run")
        if injected is not None:
            raise CudaFault(injected, "it was told to fail")
        if self.context() is None:
            raise CudaFault(Code.cudaErrorIllegalAddress, "the context that the run was queued with is gone")
        for place in (self.scratch, *(b.range for b in self.bound)):
            self.gpu.memory.check(place, True, Code.cudaErrorIllegalAddress)
        self.gpu.memory.view(self.scratch)[:] = GARBAGE
        session = self._session()
        try:
            session.run_with_iobinding(self._binding(session))
        except Exception as e:  # its errors have no public base class
            raise CudaFault(Code.cudaErrorIllegalAddress, str(e).splitlines()[0]) from None
        self.gpu.memory.view(self.scratch)[:] = GARBAGE

    def _session(self) -> ort.InferenceSession:
        """Graphs that write in place have rows and batch as numbers, as on backend `onnxruntime`."""
        batch = next(b.shape[0] for b in self.bound)
        sizes = {**self.plan.sizes, "batch": batch} if self.plan.aliases else {}
        file = Path(self.plan.graph)
        return _load(file, file.stat().st_mtime_ns, tuple(sorted(sizes.items())))

    def _binding(self, session: ort.InferenceSession) -> Any:
        binding = session.io_binding()
        for b in self.bound:
            bind = binding.bind_input if b.tensor.is_input else binding.bind_output
            bind(b.tensor.name, "cpu", 0, np.dtype(b.tensor.dtype).type, b.shape, b.range.address)
        return binding


@functools.lru_cache(64)
def _load(file: Path, changed: int, sizes: tuple[tuple[str, int], ...]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.disable_prepacking", "1")
    for name, size in sizes:
        options.add_free_dimension_override_by_name(name, size)
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
