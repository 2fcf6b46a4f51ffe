"""NVIDIA GPUs of this machine, asked of the driver itself: no package is needed, and no driver means no GPUs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txl_export.errors import EnvironmentMismatch

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# CUdevice_attribute: COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True)
class Device:
    """A GPU: its model's name, and its compute capability as "sm89"."""

    name: str
    capability: str


def devices(load: Callable[[str], Any] = ctypes.CDLL) -> list[Device]:
    """The GPUs that this process may use, in the driver's order; none without a driver.

    Args:
        load: opens the driver's library by its file name; raises OSError where there is none.
    """
    try:
        cuda = load(_DRIVER)
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []  # a driver without a GPU, or one that they were hidden from
    return [_device(cuda, n) for n in range(count.value)]


def required(backend: str) -> Device:
    """The first GPU, which is used; raises EnvironmentMismatch without one."""
    found = devices()
    if not found:
        raise EnvironmentMismatch(
            f"backend {backend!r} needs an NVIDIA GPU and this machine has none: leave --backend out to run here",
            "no NVIDIA GPU",
        )
    return found[0]


def _device(cuda: Any, n: int) -> Device:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(handle), n)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    return Device(name.value.decode(errors="replace"), f"sm{major.value}{minor.value}")


@dataclass(frozen=True)
class Driver:
    """What the driver says of itself.

    Attributes:
        cuda: the newest version of CUDA that it runs: (13, 0).
        memory: bytes of each GPU, in the order of `devices`.
        problem: why it shows no GPU, such as "CUDA_ERROR_NO_DEVICE"; None where it shows some.
    """

    cuda: tuple[int, int]
    memory: tuple[int, ...] = ()
    problem: str | None = None


def driver(load: Callable[[str], Any] = ctypes.CDLL) -> Driver | None:
    """Ask the driver of itself; None without one. Takes what `devices` takes."""
    try:
        cuda = load(_DRIVER)
    except OSError:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    supported = version.value // 1000, version.value % 1000 // 10
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return Driver(supported, (), _name_of(cuda, status) if status else "it has none")
    return Driver(supported, tuple(_memory(cuda, n) for n in range(count.value)))


def _memory(cuda: Any, n: int) -> int:
    handle, size = ctypes.c_int(), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(handle), n)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
    return size.value


def _name_of(cuda: Any, status: int) -> str:
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode(errors="replace") if name.value else f"CUDA error {status}"
