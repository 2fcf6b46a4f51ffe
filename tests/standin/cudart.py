"""Stands for the module `cuda.bindings.runtime`: memory and copies; see also `cudart_streams` and `cudart_graphs`.

Enums, constants and handle types are the genuine ones. Where CUDA leaves something open, the stand-in is strict: copies
take host memory only if it is page-locked, others may wait for the device or not; and addresses are whole numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import cuda.bindings.runtime as genuine

from tests.standin.device import StandIn
from tests.standin.memory import Code, CudaFault, Range
from tests.standin.queues import Queues, Stream, Work

Kind = genuine.cudaMemcpyKind
_KINDS = {  # whether destination and source are on the device
    Kind.cudaMemcpyHostToHost: (False, False),
    Kind.cudaMemcpyHostToDevice: (True, False),
    Kind.cudaMemcpyDeviceToHost: (False, True),
    Kind.cudaMemcpyDeviceToDevice: (True, True),
    Kind.cudaMemcpyDefault: (None, None),
}
F = TypeVar("F", bound=Callable[..., Any])


def function(values: int = 0) -> Callable[[F], F]:
    """A function of CUDA that returns a code and so many values; it raises CudaFault for other codes."""

    def made(f: F) -> F:
        @functools.wraps(f)
        def called(self: Part, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return self.gpu.answer(f.__name__, values, lambda: f(self, *args, **kwargs))

        return called  # type: ignore[return-value]

    return made


class Part:
    """What all groups of functions need."""

    def __init__(self, gpu: StandIn) -> None:
        """Take the device."""
        self.gpu = gpu

    @property
    def queues(self) -> Queues:
        return self.gpu.queues

    def stream(self, handle: Any) -> Stream:
        """A living stream; raises CudaFault."""
        found = self.queues.find(handle_of(handle))
        if found is None:
            raise CudaFault(Code.cudaErrorInvalidResourceHandle, f"there is no stream {handle}")
        return found

    def unsafe(self) -> None:
        """Disturb captures by what may not be called during one; raises CudaFault."""
        bound = [c for c in self.queues.captures() if c.binds()]
        for capture in bound:
            capture.invalid = True
        if bound:
            raise CudaFault(Code.cudaErrorStreamCaptureUnsupported, "a stream is being captured")

    def not_capturing(self, stream: Stream) -> None:
        """As `unsafe`, for what concerns one stream only."""
        if stream.capture is not None:
            stream.capture.invalid = True
            raise CudaFault(Code.cudaErrorStreamCaptureUnsupported, "the stream is being captured")


def handle_of(handle: Any) -> int:
    """The number of a handle."""
    return 0 if handle is None else int(handle)


def pointer(value: Any) -> int:
    """An address: the genuine functions would take the address of other objects, a numpy number's too."""
    if type(value) is not int:
        raise TypeError(f"an address is a whole number, not {type(value).__name__}")
    return value


class MemoryCalls(Part):
    """Allocating, copying and filling."""

    @function(1)
    def cudaMalloc(self, size: int) -> int:
        self.unsafe()
        return self.gpu.memory.allocate(size) if size else 0

    @function(1)
    def cudaMallocHost(self, size: int) -> int:
        self.unsafe()
        return self.gpu.memory.allocate(size, on_device=False) if size else 0

    @function()
    def cudaFree(self, devPtr: int) -> None:
        self.unsafe()
        self.queues.drain_all()
        if pointer(devPtr):
            self.gpu.memory.release(devPtr)

    @function()
    def cudaFreeHost(self, ptr: int) -> None:
        self.unsafe()
        if pointer(ptr):
            self.gpu.memory.release(ptr, on_device=False)

    @function(2)
    def cudaMemGetInfo(self) -> tuple[int, int]:
        return self.gpu.memory.free_bytes, self.gpu.memory.capacity

    @function()
    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Kind, stream: Any) -> None:
        self._copy(stream, kind, [(Range(pointer(dst), count), Range(pointer(src), count))])

    @function()
    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: Kind, stream: Any
    ) -> None:
        if min(dpitch, spitch) < width and width and height:
            raise CudaFault(Code.cudaErrorInvalidPitchValue, f"pitches {dpitch} and {spitch} for {width} bytes")
        rows = range(height)
        pairs = [(Range(pointer(dst) + i * dpitch, width), Range(pointer(src) + i * spitch, width)) for i in rows]
        self._copy(stream, kind, pairs)

    def _copy(self, handle: Any, kind: Kind, pairs: list[tuple[Range, Range]]) -> None:
        stream, (to_device, from_device) = self.stream(handle), _KINDS[kind]
        for to, of in pairs:
            self.gpu.memory.check(to, to_device)
            self.gpu.memory.check(of, from_device)

        def run() -> None:
            for to, of in pairs:
                self.gpu.memory.view(to)[:] = self.gpu.memory.view(of)

        writes, reads = zip(*pairs, strict=True) if pairs else ((), ())
        self.queues.put(stream, Work("a copy", run, reads, writes))

    @function()
    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: Any) -> None:
        filled = Range(pointer(devPtr), count)
        self.gpu.memory.check(filled, on_device=True)
        work = Work("a memset", lambda: self.gpu.memory.view(filled).fill(value & 0xFF), writes=[filled])
        self.queues.put(self.stream(stream), work)
