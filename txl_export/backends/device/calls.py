"""CUDA calls, every returned code checked, through cuda-python.

Source of names and signatures: `cuda.bindings.runtime` 13, the CUDA runtime API.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from txl_export.backends.imports import imported
from txl_export.errors import DeviceError

MODULE = "cuda.bindings.runtime"
# Addresses of tensors that TensorRT takes are multiples of this; cudaMalloc's are.
ALIGNMENT = 256


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Owned:
    """A thing of the driver's that is given back when nobody holds it any more.

    Attributes:
        handle: an address, or the driver's own object.
    """

    __slots__ = ("__weakref__", "_close", "handle")

    def __init__(self, handle: Any, give_back: Callable[[Any], Any]) -> None:
        """Take a handle and the call that ends it, whose code nobody can act on any more."""
        self.handle = handle
        self._close = weakref.finalize(self, give_back, handle)
        self._close.atexit = False  # the driver goes with the process, maybe before this does

    def close(self) -> None:
        """Give it back now."""
        self._close()


class Block(Owned):
    """Bytes of a GPU's memory.

    Attributes:
        nbytes: how many.
    """

    __slots__ = ("nbytes",)

    def __init__(self, address: int, nbytes: int, give_back: Callable[[Any], Any]) -> None:
        """Take what was allocated."""
        super().__init__(address, give_back)
        self.nbytes = nbytes

    @property
    def address(self) -> int:
        """Of the first byte."""
        return int(self.handle)


class Cuda:
    """The CUDA runtime of this process, on the first GPU that it may use."""

    def __init__(self) -> None:
        """Import cuda-python and take the GPU; raises EnvironmentMismatch without the package, DeviceError."""
        self.api: Any = imported(MODULE, "gpu", "running on a GPU")
        self._call("cudaSetDevice", 0)

    def _call(self, name: str, *arguments: Any) -> Any:
        """The value that a call returns; raises DeviceError for any code but success."""
        code, *values = getattr(self.api, name)(*arguments)
        self._check(code, name)
        return values[0] if values else None

    def _check(self, code: Any, name: str) -> None:
        """Raise DeviceError for any code but success."""
        if code == self.api.cudaError_t.cudaSuccess:
            return
        self.api.cudaGetLastError()  # this error is not the next call's, as those who look for one would take it
        (_, word), (_, said) = self.api.cudaGetErrorName(code), self.api.cudaGetErrorString(code)
        raise DeviceError(f"the GPU refused {name} ({word.decode()}, {said.decode()}): see 'txl-export doctor'")

    def allocate(self, nbytes: int, what: str) -> Block:
        """Memory on the GPU, of unknown content.

        Args:
            nbytes: how much; 0 is made 1, so that there is an address.
            what: it is for, for the message.

        Raises:
            DeviceError: there is no room: what was asked and what is free.
        """
        nbytes = max(1, nbytes)
        code, address = self.api.cudaMalloc(nbytes)
        if code == self.api.cudaError_t.cudaErrorMemoryAllocation:
            self.api.cudaGetLastError()  # this error is not the next call's
            free, total = self.room()
            raise DeviceError(
                f"{what} needs {nbytes:,} bytes on the GPU, {free:,} of {total:,} are free: "
                "use fewer streams, a shorter memory, or close sessions"
            )
        self._check(code, "cudaMalloc")
        return Block(int(address), nbytes, self.api.cudaFree)

    def room(self) -> tuple[int, int]:
        """Bytes of the GPU that are free, and all it has."""
        code, free, total = self.api.cudaMemGetInfo()
        self._check(code, "cudaMemGetInfo")
        return int(free), int(total)

    def pinned(self, nbytes: int) -> tuple[np.ndarray, Owned]:
        """Host memory that the GPU copies from and to by itself, uint8 [nbytes], and what keeps it."""
        owned = Owned(int(self._call("cudaMallocHost", nbytes)), self._free_pinned)
        raw = (ctypes.c_uint8 * nbytes).from_address(owned.handle)
        return np.ctypeslib.as_array(raw), owned

    def _free_pinned(self, address: int) -> None:
        """Freeing waits for nothing, but copies may be queued: of a call that failed half-way."""
        self.api.cudaDeviceSynchronize()
        self.api.cudaFreeHost(address)

    def stream(self) -> Owned:
        """A queue of work that waits for no other."""
        return Owned(
            self._call("cudaStreamCreateWithFlags", self.api.cudaStreamNonBlocking), self.api.cudaStreamDestroy
        )

    def wait(self, stream: Owned) -> None:
        """Wait until all work of a stream has happened; raises DeviceError for what failed in it."""
        self._call("cudaStreamSynchronize", stream.handle)

    def copy(self, to: int, source: int, nbytes: int, stream: Owned) -> None:
        """Queue a copy between any two places; a host's array must stay as it is until it has happened."""
        self._call("cudaMemcpyAsync", to, source, nbytes, self.api.cudaMemcpyKind.cudaMemcpyDefault, stream.handle)

    def copy_rows(
        self, to: int, to_step: int, source: int, source_step: int, width: int, rows: int, stream: Owned
    ) -> None:
        """Queue a copy of `rows` runs of `width` bytes that begin every so many bytes."""
        kind = self.api.cudaMemcpyKind.cudaMemcpyDefault
        self._call("cudaMemcpy2DAsync", to, to_step, source, source_step, width, rows, kind, stream.handle)

    def fill(self, address: int, value: int, nbytes: int, stream: Owned) -> None:
        """Queue that bytes become a value."""
        self._call("cudaMemsetAsync", address, value, nbytes, stream.handle)

    def event(self, timed: bool = False) -> Owned:
        """A mark in a stream; only a timed one can be asked for when it happened."""
        flags = self.api.cudaEventDefault if timed else self.api.cudaEventDisableTiming
        return Owned(self._call("cudaEventCreateWithFlags", flags), self.api.cudaEventDestroy)

    def record(self, event: Owned, stream: Owned) -> None:
        """Mark what was queued so far."""
        self._call("cudaEventRecord", event.handle, stream.handle)

    def record_in(self, event: Owned, stream: int) -> None:
        """Mark what another stream, by its handle, was given so far."""
        self._call("cudaEventRecord", event.handle, stream)

    def wait_event(self, event: Owned) -> None:
        """Wait until a mark has been reached; at once where none was set."""
        self._call("cudaEventSynchronize", event.handle)

    def wait_in(self, stream: int, event: Owned) -> None:
        """Let another stream, by its handle, wait until a mark has been reached."""
        self._call("cudaStreamWaitEvent", stream, event.handle, 0)

    def milliseconds(self, start: Owned, end: Owned) -> float:
        """Between two timed marks that have been reached."""
        return float(self._call("cudaEventElapsedTime", start.handle, end.handle))

    def capture(self, stream: Owned, put: Callable[[], None]) -> Owned:
        """Record what `put` queues, without running it; returns what `launch` runs.

        Raises:
            DeviceError: something that cannot be captured was called. The stream takes work as before.
        """
        self._call("cudaStreamBeginCapture", stream.handle, self._mode)
        try:
            put()
        except BaseException:
            self.api.cudaStreamEndCapture(stream.handle)  # it ends in an error, which is told already
            self.api.cudaGetLastError()
            raise
        graph = Owned(self._call("cudaStreamEndCapture", stream.handle), self.api.cudaGraphDestroy)
        return Owned(self._call("cudaGraphInstantiate", graph.handle, 0), self.api.cudaGraphExecDestroy)

    @property
    def _mode(self) -> Any:
        """Other threads' calls are none of a capture's business."""
        return self.api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal

    def launch(self, graph: Owned, stream: Owned) -> None:
        """Queue what was captured, with its addresses and shapes."""
        self._call("cudaGraphLaunch", graph.handle, stream.handle)
