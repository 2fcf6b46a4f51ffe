"""Stands for the module `tensorrt`: contexts, which check what the documentation asks for before they queue a run."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.standin.memory import Code, CudaFault, Range
from tests.standin.plan_files import Dim, Tensor
from tests.standin.queues import LEGACY, Stream, Work
from tests.standin.running import Bound, Job
from tests.standin.trt_names import Dims, ExecutionContextAllocationStrategy

if TYPE_CHECKING:
    from tests.standin.trt import ICudaEngine

ALIGNMENT = 256


class RefusedError(Exception):
    """A rule is broken: the context logs it and answers False."""


def need(condition: object, message: str) -> None:
    """Raise RefusedError unless a condition holds."""
    if not condition:
        raise RefusedError(message)


class IExecutionContext:
    """Shapes, addresses and scratch memory of one user of an engine."""

    def __init__(self, engine: ICudaEngine, strategy: ExecutionContextAllocationStrategy) -> None:
        if not isinstance(strategy, ExecutionContextAllocationStrategy):
            raise TypeError("create_execution_context(): incompatible function arguments")
        self.engine = engine
        self._gpu = engine._gpu
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch: Range | None = None
        self._settled = False  # whether these shapes have been run
        if strategy != ExecutionContextAllocationStrategy.USER_MANAGED:
            memory, size = self._gpu.memory, engine.device_memory_size_v2
            self._scratch = Range(memory.allocate(size), size)
            weakref.finalize(self, memory.release, self._scratch.address)

    @property
    def active_optimization_profile(self) -> int:
        return 0

    def set_optimization_profile_async(self, profile_index: int, stream_handle: Any) -> bool:
        with self._gpu.lock:
            return self._answer(lambda: self._set_profile(profile_index, int(stream_handle)))

    def _set_profile(self, index: int, stream: int) -> None:
        need(index == 0, f"setOptimizationProfileAsync: there is no profile {index}")
        self._stream(stream)

    def set_device_memory(self, memory: Any, size: Any) -> None:
        self._scratch = Range(int(memory), int(size))

    def set_input_shape(self, name: str, shape: Any) -> bool:
        if not isinstance(shape, (tuple, list, Dims)):
            raise TypeError("set_input_shape(): incompatible function arguments")
        with self._gpu.lock:
            return self._answer(lambda: self._set_shape(name, tuple(int(n) for n in shape)))

    def _set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self.engine._tensors.get(name)
        need(tensor is not None and tensor.is_input, f"setInputShape: {name!r} is no input")
        least, _, most = self.engine._plan.profiles[name]
        inside = len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, most, strict=True))
        need(inside, f"setInputShape: {name!r} is {shape}, the profile has {least} to {most}")
        if self._shapes.get(name) != shape:
            self._settled = False
        self._shapes[name] = shape

    def set_tensor_address(self, name: str, memory: Any) -> bool:
        with self._gpu.lock:
            return self._answer(lambda: self._set_address(name, int(memory)))

    def _set_address(self, name: str, address: int) -> None:
        need(name in self.engine._tensors, f"setTensorAddress: {name!r} is no input or output")
        self._addresses[name] = address

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(-1 if isinstance(n, str) else n for n in self._shape(self.engine._tensors[name], self._sizes()))

    def infer_shapes(self) -> list[str]:
        """Inputs whose shapes are not given; raises RuntimeError for shapes that contradict each other."""
        with self._gpu.lock:
            try:
                self._sizes()
            except RefusedError as e:
                self.engine._say(str(e))
                raise RuntimeError(str(e)) from None
            return [t.name for t in self.engine._of_mode(True) if self._open(t) and t.name not in self._shapes]

    def _open(self, tensor: Tensor) -> bool:
        return any(isinstance(n, str) for n in tensor.sized(self.engine._plan.sizes))

    def _sizes(self) -> Mapping[str, int]:
        """Symbolic dimensions as the given shapes have them."""
        sizes: dict[str, int] = dict(self.engine._plan.sizes)
        for name, shape in self._shapes.items():
            for dim, n in zip(self.engine._tensors[name].dims, shape, strict=True):
                if isinstance(dim, str):
                    need(sizes.setdefault(dim, n) == n, f"shapes disagree on {dim}: {sizes[dim]}, and {n} in {name!r}")
        return sizes

    def _shape(self, tensor: Tensor, sizes: Mapping[str, int]) -> tuple[Dim, ...]:
        return self._shapes.get(tensor.name, tensor.sized(sizes))

    def execute_async_v3(self, stream_handle: Any) -> bool:
        """Queue a run with the shapes, addresses and scratch memory of this moment."""
        with self._gpu.lock:
            return self._answer(lambda: self._enqueue(int(stream_handle)))

    def _enqueue(self, handle: int) -> None:
        need(self._gpu.count("execute_async_v3") is None, "enqueueV3: it was told to fail")
        need(self._gpu.queues.broken is None, "enqueueV3: Error Code 1: Cuda Runtime (an earlier error)")
        stream = self._stream(handle)
        bound, scratch = self._bound(), self._checked_scratch()
        self._check_places(bound)
        if stream.capture is not None and not self._settled:
            stream.capture.invalid = True
            raise RefusedError("enqueueV3: shapes have changed: run once before a capture")
        self._settled = True
        job = Job(self._gpu, self.engine._plan, bound, scratch, weakref.ref(self))
        reads = [b.range for b in bound if b.tensor.is_input]
        writes = [scratch, *(b.range for b in bound if not b.tensor.is_input)]
        self._gpu.queues.put(stream, Work("an engine's run", job.run, reads, writes))

    def _stream(self, handle: int) -> Stream:
        need(handle not in (0, LEGACY), "enqueueV3: the default stream synchronises everything: give another")
        found = self._gpu.queues.find(handle)
        if found is None:
            raise RefusedError(f"enqueueV3: Error Code 1: Cuda Runtime (there is no stream {handle:#x})")
        return found

    def _bound(self) -> list[Bound]:
        missing = self.infer_shapes()
        need(not missing, f"enqueueV3: no shape was given for {', '.join(missing)}")
        sizes = self._sizes()
        bound = []
        for tensor in self.engine._tensors.values():
            address = self._addresses.get(tensor.name, 0)
            need(address, f"enqueueV3: no address was given for {tensor.name!r}")
            need(address % ALIGNMENT == 0, f"enqueueV3: {tensor.name!r} is not aligned to {ALIGNMENT} bytes")
            shape = tuple(int(n) for n in self._shape(tensor, sizes))
            bound.append(Bound(tensor, shape, Range(address, math.prod(shape) * np.dtype(tensor.dtype).itemsize)))
        return bound

    def _checked_scratch(self) -> Range:
        needed, given = self.engine.device_memory_size_v2, self._scratch
        if given is None or given.address == 0:
            raise RefusedError("enqueueV3: no device memory was given, and the context has none of its own")
        need(given.size >= needed, f"enqueueV3: device memory has {given.size} bytes, the engine needs {needed}")
        need(given.address % ALIGNMENT == 0, f"enqueueV3: device memory is not aligned to {ALIGNMENT} bytes")
        return given

    def _check_places(self, bound: list[Bound]) -> None:
        """What is written lies nowhere but where it is declared to."""
        aliases, by_name = self.engine._plan.aliases, {b.tensor.name: b for b in bound}
        for output in (b for b in bound if not b.tensor.is_input):
            own = aliases.get(output.tensor.name)
            if own is not None:
                same = by_name[own].range == output.range
                need(same, f"enqueueV3: {output.tensor.name!r} is not where {own!r} is, whose memory it is")
            for other in bound:
                apart = other is output or other.tensor.name == own or not other.range.overlaps(output.range)
                need(apart, f"enqueueV3: {output.tensor.name!r} overlaps {other.tensor.name!r}")

    def _answer(self, work: Any) -> bool:
        try:
            work()
        except (RefusedError, RuntimeError) as e:
            self.engine._say(f"IExecutionContext::{e}")
            return False
        except CudaFault as e:
            self.engine._say(f"IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime ({e.reason})")
            self._gpu.last = e.code or Code.cudaErrorUnknown
            return False
        return True
