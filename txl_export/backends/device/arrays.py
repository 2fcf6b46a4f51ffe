"""Arrays on a GPU, as libraries hand them to each other: DLPack, and `__cuda_array_interface__`.

Sources: https://dmlc.github.io/dlpack/latest/python_spec.html, and the CUDA Array Interface, version 3, of Numba's
documentation. A consumer that follows either waits for the stream in which an array is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from txl_export.backends.device.calls import Cuda, Owned
from txl_export.backends.device.dlpack import CUDA, capsule
from txl_export.errors import EnvironmentMismatch, InputError, missing_extra
from txl_export.files import first_line

_CUDA_DEVICES = (CUDA, 13)  # and kDLCUDAManaged
_LEGACY_STREAM, _NO_WAITING = 1, -1


class DeviceArray:
    """Numbers on the GPU, C-contiguous; made by work in a stream that may not have happened yet.

    Attributes:
        shape: of the array.
        dtype: numpy's.
        address: of the first number.
    """

    def __init__(
        self, cuda: Cuda, stream: Owned, shape: tuple[int, ...], dtype: str, address: int, owner: object
    ) -> None:
        """Take a place on the device and what keeps it."""
        self.shape, self.dtype, self.address = shape, np.dtype(dtype), address
        self._cuda, self._stream, self._owner = cuda, stream, owner

    @classmethod
    def empty(cls, cuda: Cuda, stream: Owned, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """A new one, of unknown content; raises DeviceError where there is no room."""
        block = cuda.allocate(int(np.prod(shape)) * np.dtype(dtype).itemsize, f"an answer {list(shape)}")
        return cls(cuda, stream, shape, dtype, block.address, block)

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def wait(self) -> None:
        """Wait until the work that makes the numbers has happened, for consumers that don't."""
        self._cuda.wait(self._stream)

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        pinned, owned = self._cuda.pinned(max(1, self.nbytes))
        self._cuda.copy(pinned.ctypes.data, self.address, self.nbytes, self._stream)
        self.wait()
        found: np.ndarray = pinned[: self.nbytes].view(self.dtype).reshape(self.shape).copy()
        owned.close()
        return found

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What CuPy, Numba and PyTorch take."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            "stream": int(self._stream.handle),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """The GPU."""
        return CUDA, 0

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule; the consumer's stream, None for the default one, waits for ours unless it is -1.

        Raises:
            BufferError: for a copy, or another device, or stream 0, which the protocol leaves out as ambiguous.
        """
        if copy or dl_device not in (None, (CUDA, 0)) or stream == 0:
            raise BufferError("it is given where it is, on GPU 0, to a stream that is not 0 (1 is the default one)")
        if stream != _NO_WAITING:
            mark = self._cuda.event()
            self._cuda.record(mark, self._stream)
            self._cuda.wait_in(_LEGACY_STREAM if stream is None else stream, mark)
        versioned = max_version is not None and max_version >= (1, 0)
        return capsule(self.address, self.shape, self.dtype, self, versioned)


def is_on_device(value: object) -> bool:
    """Whether a value is an array on a GPU."""
    if isinstance(value, np.ndarray):
        return False
    try:
        device = getattr(value, "__dlpack_device__", None)
        if device is not None:
            return int(device()[0]) in _CUDA_DEVICES
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # of a device that has no number, or a half-made array: whatever reads it says what is wrong
        return False


def taken(value: object, cuda: Cuda, stream: Owned, what: str, written: bool = False) -> tuple[DeviceArray, int]:
    """An array of another library's, for work in our stream, which waits for the work that makes it.

    Args:
        value: has `__dlpack__`, which is preferred since it tells the producer our stream, or
            `__cuda_array_interface__`.
        cuda: the GPU.
        stream: ours.
        what: it is, for messages.
        written: whether it will be written.

    Returns:
        the array, and the stream, by its handle, that should wait for ours before the array is used there again.

    Raises:
        InputError: it is not C-contiguous, on another GPU or read-only where it will be written.
        EnvironmentMismatch: DLPack without the package that reads it.
    """
    if isinstance(value, DeviceArray):
        lender = int(value._stream.handle)
        if value._stream is not stream:
            _follow(cuda, stream, lender)
        return value, lender
    found = _by_dlpack(value, stream, what) if hasattr(value, "__dlpack__") else _by_interface(value, cuda, stream)
    if not _contiguous(found.shape, found.strides):
        raise InputError(f"{what} have strides {list(found.strides or ())} on the GPU, expected a C-contiguous array")
    if written and found.read_only:
        raise InputError(f"{what} is read-only on the GPU, expected an array to write into")
    return DeviceArray(cuda, stream, found.shape, found.dtype, found.address, found.owner), found.lender


class _Found(NamedTuple):
    """What an interface tells of an array; strides count numbers, None for none between rows."""

    shape: tuple[int, ...]
    dtype: str
    address: int
    strides: tuple[int, ...] | None
    read_only: bool
    lender: int
    owner: object


def _by_dlpack(value: object, stream: Owned, what: str) -> _Found:
    """Nothing tells the stream in which the producer will use it next: the protocol takes the default one."""
    device = int(value.__dlpack_device__()[1])  # type: ignore[attr-defined]
    if device:
        raise InputError(f"{what} are on GPU {device}, expected GPU 0, which runs the model")
    try:
        view = _views().from_dlpack(value, stream_ptr=int(stream.handle))
        shape, dtype, address, strides = tuple(view.shape), view.dtype.str, int(view.ptr), view.strides
    except EnvironmentMismatch:
        raise
    except Exception as e:  # producers refuse with errors of their own
        raise InputError(
            f"{what} cannot be taken on the GPU ({first_line(e)}): give a C-contiguous array of plain numbers"
        ) from None
    return _Found(shape, dtype, address, strides and tuple(strides), bool(view.readonly), _LEGACY_STREAM, view)


def _by_interface(value: object, cuda: Cuda, stream: Owned) -> _Found:
    told: Mapping[str, Any] = value.__cuda_array_interface__  # type: ignore[attr-defined]
    address, read_only = told["data"]
    dtype, strides = np.dtype(told["typestr"]), told.get("strides")
    # Before version 3 nothing tells the stream: work is the default stream's.
    source = told.get("stream") if told["version"] >= 3 else _LEGACY_STREAM
    if source is not None:
        _follow(cuda, stream, int(source))
    steps = None if strides is None else tuple(s // dtype.itemsize for s in strides)
    lender = _LEGACY_STREAM if source is None else int(source)
    return _Found(tuple(told["shape"]), dtype.str, int(address), steps, bool(read_only), lender, value)


def _follow(cuda: Cuda, stream: Owned, other: int) -> None:
    """Let our stream wait for what another has been given so far."""
    mark = cuda.event()
    cuda.record_in(mark, other)
    cuda.wait_in(int(stream.handle), mark)


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether numbers stand one after the other; strides count numbers, None for such that do."""
    if strides is None:
        return True
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and s != step:
            return False
        step *= n
    return True


def _views() -> Any:
    try:
        from cuda.core.utils import StridedMemoryView
    except ImportError:
        raise missing_extra("cuda-core", "gpu", "DLPack on a GPU") from None
    return StridedMemoryView
