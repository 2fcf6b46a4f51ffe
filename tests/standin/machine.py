"""What a test does on the stand-in through CUDA's and TensorRT's own functions, with every code checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.standin.gpu import Gpu
from tests.standin.memory import Code, Range
from tests.standin.plan_files import Plan

NON_BLOCKING = 1


class Machine:
    """A device, a stream and a way to put arrays on it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.cudart = gpu, gpu.cudart
        self.kind = gpu.cudart.cudaMemcpyKind.cudaMemcpyDefault
        self.stream = self.new_stream()

    def do(self, name: str, *arguments: Any) -> Any:
        """Call a function of CUDA that must succeed; what it gives."""
        code, *given = getattr(self.cudart, name)(*arguments)
        assert code == Code.cudaSuccess, (name, code, self.gpu.reasons)
        return given[0] if given else None

    def code(self, name: str, *arguments: Any) -> str:
        """The code of a call, without "cudaError"."""
        return str(getattr(self.cudart, name)(*arguments)[0].name).removeprefix("cudaError")

    def new_stream(self) -> Any:
        return self.do("cudaStreamCreateWithFlags", NON_BLOCKING)

    def device(self, size: int = 1024) -> int:
        return int(self.do("cudaMalloc", size))

    def pinned(self, values: Any) -> tuple[int, np.ndarray]:
        """Page-locked memory that holds values: its address, and an array that is the memory."""
        array = np.asarray(values)
        address = int(self.do("cudaMallocHost", array.nbytes))
        held = self.gpu.memory.view(Range(address, array.nbytes)).view(array.dtype).reshape(array.shape)
        held[...] = array
        return address, held

    def copy(self, to: int, of: int, size: int, stream: Any = None) -> None:
        self.do("cudaMemcpyAsync", to, of, size, self.kind, stream or self.stream)

    def synchronise(self, stream: Any = None) -> None:
        self.do("cudaStreamSynchronize", stream or self.stream)

    def put(self, values: Any) -> int:
        """Device memory that holds values."""
        source, array = self.pinned(values)
        address = self.device(array.nbytes)
        self.copy(address, source, array.nbytes)
        self.synchronise()
        return address

    def get(self, address: int, like: Any) -> np.ndarray:
        """What device memory holds, when all is done."""
        target, array = self.pinned(np.zeros_like(like))
        self.do("cudaDeviceSynchronize")
        self.copy(target, address, array.nbytes)
        self.synchronise()
        return array

    def engine(self, plan: Plan) -> Any:
        trt = self.gpu.packages[plan.package]
        return trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(plan.to_bytes())

    def context(self, engine: Any, shapes: Mapping[str, tuple[int, ...]], addresses: Mapping[str, int]) -> Any:
        """A context that lacks nothing."""
        made = engine.create_execution_context(self.gpu.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        size = engine.device_memory_size_v2
        made.set_device_memory(self.device(size), size)
        assert all(made.set_input_shape(name, shape) for name, shape in shapes.items())
        assert all(made.set_tensor_address(name, address) for name, address in addresses.items())
        return made

    def capture(self, *contexts: Any) -> Any:
        """An executable graph of one run of each context."""
        mode = self.cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.do("cudaStreamBeginCapture", self.stream, mode)
        assert all(c.execute_async_v3(self.stream) for c in contexts)
        return self.do("cudaGraphInstantiate", self.do("cudaStreamEndCapture", self.stream), 0)
