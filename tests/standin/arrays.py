"""Device arrays of other libraries, in the stand-in's memory: made by work on a stream that may not be done yet."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tests.standin.device import StandIn
from tests.standin.dlpack import CUDA, capsule
from tests.standin.memory import CudaFault, Range
from tests.standin.queues import LEGACY, Stream, Work

_NONE = -1  # for a stream: nothing waits


class Held:
    """Values on the device, freed with this object, and the stream that writes and reads them.

    Attributes:
        exported: DLPack capsules whose deleter has not been called.
    """

    def __init__(
        self, gpu: StandIn, values: Any, stream: Any = None, padding: int = 0, read_only: bool = False
    ) -> None:
        """Put values on the device, as work of a stream if one is given.

        Args:
            gpu: the device.
            values: an array.
            stream: that writes them when its time comes; None for values that are there.
            padding: numbers between rows of the last axis, as in a part of a larger array.
            read_only: what consumers are told.
        """
        self._gpu, self._like, self._read_only = gpu, np.array(values), read_only
        self.exported = 0
        width = self._like.shape[-1] + padding if self._like.ndim else 1
        self._padded = (*self._like.shape[:-1], width) if self._like.ndim else ()
        self.strides = _strides(self._padded)  # in numbers
        nbytes = max(1, int(np.prod(self._padded))) * self._like.dtype.itemsize
        self.address = gpu.memory.allocate(nbytes)
        self._range = Range(self.address, nbytes)
        weakref.finalize(self, _release, gpu, self.address)
        self._stream = None if stream is None else self._find(int(stream))
        write = Work("an array's making", self._writer(self._like), writes=[self._range])
        with gpu.lock:
            if self._stream is None:
                write.run()
            else:
                gpu.queues.put(self._stream, write)

    def _writer(self, values: np.ndarray) -> Any:
        gpu, range_, dtype, padded = self._gpu, self._range, values.dtype, self._padded

        def run() -> None:  # keeps no reference to the array, which may go before
            _rows(gpu.memory.view(range_), dtype, padded, values.shape)[...] = values

        return run

    def numpy(self) -> np.ndarray:
        """The values once the work of its own stream is done; other streams are not waited for."""
        with self._gpu.lock:
            if self._stream is not None:
                self._gpu.queues.drain(self._stream)
            held = self._gpu.memory.view(self._range)
            return _rows(held, self._like.dtype, self._padded, self._like.shape).copy()

    def _find(self, handle: int) -> Stream:
        found = self._gpu.queues.find(handle)
        assert found is not None, f"there is no stream {handle}"
        return found

    @property
    def _is_dense(self) -> bool:
        return self._padded == self._like.shape


class CudaInterface(Held):
    """An array that tells of itself by `__cuda_array_interface__`, version 3."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        size = self._like.dtype.itemsize
        return {
            "version": 3,
            "shape": self._like.shape,
            "typestr": self._like.dtype.str,
            "data": (self.address, self._read_only),
            "strides": None if self._is_dense else tuple(n * size for n in self.strides),
            "stream": None if self._stream is None else self._stream.handle or LEGACY,
        }


class OldDlpack(Held):
    """An array that exports DLPack capsules as before version 1.0."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        """The consumer's stream waits for the work that makes the array."""
        return self._export(stream, versioned=False)

    def _export(self, stream: int | None, versioned: bool) -> Any:
        if stream == 0:
            raise ValueError("stream 0 is ambiguous: 1 is the legacy default stream")
        with self._gpu.lock:
            self._order(LEGACY if stream is None else stream)
        self.exported += 1
        strides = None if self._is_dense else self.strides
        return capsule(self.address, self._like, strides, self._returned, versioned, self._read_only)

    def _order(self, stream: int) -> None:
        if stream == _NONE or self._stream is None:
            return
        consumer = self._find(stream)
        if consumer is not self._stream:
            made = Work("an event")
            self._gpu.queues.put(self._stream, made)
            self._gpu.queues.put(consumer, Work("a wait for an array", after=made))

    def _returned(self) -> None:
        self.exported -= 1


class Dlpack(OldDlpack):
    """An array that exports DLPack capsules, of version 1.0 to those who ask for it."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, (CUDA, 0)):
            raise BufferError("it is exported where it is, without a copy")
        return self._export(stream, versioned=max_version is not None and max_version >= (1, 0))


class Array(CudaInterface, Dlpack):
    """An array with both interfaces, as most libraries have them."""


INTERFACES = (Array, CudaInterface, Dlpack, OldDlpack)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def _rows(data: np.ndarray, dtype: Any, padded: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(padded))
    whole = data[: count * np.dtype(dtype).itemsize].view(dtype).reshape(padded)
    return whole[(*(slice(n) for n in shape), ...)]  # a view, of a single number too


def _release(gpu: StandIn, address: int) -> None:
    """Work that still needs the memory finds it gone: its owner did not wait."""
    with gpu.lock:
        try:
            gpu.memory.release(address)
        except CudaFault:  # freed by a test
            return
