"""NVIDIA GPUs of this machine, asked of the driver itself: no package is needed, and no driver means no GPUs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def _device(cuda: Any, n: int) -> Device:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(handle), n)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    return Device(name.value.decode(errors="replace"), f"sm{major.value}{minor.value}")
