"""Stands for the module `onnxruntime` with a CUDA provider: runs wait in the stream that the provider was told.

All else is the genuine module's. A session that captures runs a call twice at first, as the genuine one does, and
later the captured places whatever is bound.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as genuine
import pytest

from tests.standin.gpu import Gpu
from tests.standin.memory import Code, CudaFault, Range
from tests.standin.queues import Capture, Mode, Work

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_GRAPH, _NO_WAITING = "gpu_graph_annotation_id", "disable_synchronize_execution_providers"
_BFLOAT16 = 16

Bound = Mapping[str, tuple[bool, type, Sequence[int], Range]]  # by name: an input or not, type, shape, place


class RunOptions:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.told[key] = value


class IOBinding:
    """Places on the device."""

    def __init__(self) -> None:
        self.bound: dict[str, tuple[bool, type, Sequence[int], Range]] = {}

    def bind_input(self, name: str, device: str, number: int, kind: Any, shape: Sequence[int], address: int) -> None:
        self._bind(True, name, device, number, kind, shape, address)

    def bind_output(self, name: str, device: str, number: int, kind: Any, shape: Sequence[int], address: int) -> None:
        self._bind(False, name, device, number, kind, shape, address)

    def _bind(
        self, given: bool, name: str, device: str, number: int, kind: Any, shape: Sequence[int], address: int
    ) -> None:
        assert (device, number) == ("cuda", 0) and type(address) is int
        size = 2 if kind == _BFLOAT16 else np.dtype(kind).itemsize
        self.bound[name] = (given, kind, tuple(shape), Range(address, math.prod(shape) * size))


class InferenceSession:
    """A graph that runs in the provider."""

    def __init__(self, module: Onnxruntime, path: Any, options: Any, told: Mapping[str, str]) -> None:
        """Load the graph for the host, where it runs."""
        self._module, self._gpu = module, module.gpu
        stream = self._gpu.queues.find(int(told["user_compute_stream"]))
        assert stream is not None and told["device_id"] == "0"
        self._stream, self._captures = stream, told["enable_cuda_graph"] == "1"
        options.intra_op_num_threads, options.enable_mem_pattern = 1, False
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.disable_prepacking", "1")
        self._real = genuine.InferenceSession(Path(path), options, providers=[CPU])
        self._names = {v.name for v in (*self._real.get_inputs(), *self._real.get_outputs())}
        self._captured: dict[int, list[Work]] = {}

    def get_providers(self) -> list[str]:
        return [CPU] if self._module.falls_back else [CUDA, CPU]

    def io_binding(self) -> IOBinding:
        return IOBinding()

    def run_with_iobinding(self, binding: IOBinding, options: RunOptions) -> None:
        with self._gpu.lock:
            if self._gpu.count("run_with_iobinding") is not None:
                raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : it was told to fail\nand where")
            bound, number = dict(binding.bound), int(options.told.get(_GRAPH, "0"))
            if bound.keys() != self._names:
                raise RuntimeError(
                    f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {self._names ^ bound.keys()} not bound"
                )
            try:
                for *_, place in bound.values():
                    self._gpu.memory.check(place, on_device=True)
                self._put(bound, number)
                if options.told.get(_NO_WAITING) != "1":
                    self._gpu.calls["onnxruntime waits"] += 1
                    self._gpu.queues.drain(self._stream)
            except CudaFault as e:
                raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : CUDA failure {e}") from None

    def _put(self, bound: Bound, number: int) -> None:
        """Queue a run, or what was captured under a number; -1 captures nothing."""
        if not self._captures or number < 0:
            return self._queue(bound)
        if number in self._captured:
            self._gpu.calls["onnxruntime replays"] += 1
        else:
            self._queue(bound)  # a first run, then the one that is captured
            self._captured[number] = self._capture(bound)
        work = self._captured[number]
        reads, writes = ([r for w in work for r in getattr(w, kind)] for kind in ("reads", "writes"))
        self._gpu.queues.put(self._stream, Work("a graph", lambda: [w.run() for w in work], reads, writes))  # type: ignore[arg-type,return-value]
        return None

    def _capture(self, bound: Bound) -> list[Work]:
        """What is queued meanwhile, whoever does it; others may come in between."""
        capture = self._stream.capture = Capture(Mode.cudaStreamCaptureModeGlobal, threading.get_ident())
        self._queue(bound)
        self._gpu.lock.release()
        self._module.while_capturing()
        self._gpu.lock.acquire()
        self._stream.capture = None
        if capture.invalid:
            raise CudaFault(Code.cudaErrorStreamCaptureInvalidated, "the capture was disturbed")
        return capture.work

    def _queue(self, bound: Bound) -> None:
        if self._gpu.queues.broken is not None:
            raise CudaFault(self._gpu.queues.broken, "an earlier error ended everything")
        reads = [place for given, _, _, place in bound.values() if given]
        writes = [place for given, _, _, place in bound.values() if not given]
        self._gpu.queues.put(self._stream, Work("a provider's run", lambda: self._run(bound), reads, writes))

    def _run(self, bound: Bound) -> None:
        self._gpu.count("provider run")
        binding = self._real.io_binding()
        for name, (given, kind, shape, place) in bound.items():
            self._gpu.memory.check(place, True, Code.cudaErrorIllegalAddress)
            bind = binding.bind_input if given else binding.bind_output
            bind(name, "cpu", 0, kind, shape, place.address)
        try:
            self._real.run_with_iobinding(binding)
        except Exception as e:  # its errors have no public base class
            raise CudaFault(Code.cudaErrorIllegalAddress, str(e).splitlines()[0]) from None


class Onnxruntime:
    """The module.

    Attributes:
        gpu: the device.
        falls_back: whether the provider cannot be loaded, so that sessions run on the host.
        while_capturing: called while a session captures.
        while_capturing: called while a session captures, in its thread.
        loading: raised when a session is loaded on the device; None for nothing.
    """

    RunOptions = RunOptions

    def __init__(self, gpu: Gpu) -> None:
        """Stand for the module on a device."""
        self.gpu, self.falls_back = gpu, False
        self.while_capturing: Callable[[], None] = lambda: None
        self.loading: Exception | None = None
        self.__name__, self.__spec__ = genuine.__name__, genuine.__spec__

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put it in the place of the module, for as long as the patch holds."""
        patch.setitem(sys.modules, "onnxruntime", self)  # type: ignore[arg-type]

    def get_available_providers(self) -> list[str]:
        return [CUDA, CPU]

    def preload_dlls(self) -> None:
        """The libraries are there."""

    def InferenceSession(self, path: Any, options: Any = None, providers: Any = None, **more: Any) -> Any:
        if not providers or not isinstance(providers[0], tuple) or providers[0][0] != CUDA:
            return genuine.InferenceSession(path, options, providers=providers, **more)
        if self.loading is not None:
            raise self.loading
        return InferenceSession(self, path, options, providers[0][1])

    def __getattr__(self, name: str) -> Any:
        return getattr(genuine, name)
