"""DLPack capsules of memory on the GPU, made without asking the driver.

Source: dlpack.h, version 1.0, and https://dmlc.github.io/dlpack/latest/python_spec.html.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CUDA = 2  # kDLCUDA
_CODES = {"i": 0, "u": 1, "f": 2}
_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"  # capsules keep these addresses
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """As before version 1.0."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# Prototypes of their own: functions that are taken from `pythonapi` by name are shared with all other code.
_API = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(("PyCapsule_New", _API))
_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _API))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _API))

# What capsules point to, by address, until a consumer, or an unused capsule, gives it back.
_lent: dict[int, tuple[Any, ...]] = {}


def capsule(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object, versioned: bool) -> object:
    """A capsule of C-contiguous numbers on the first GPU.

    Args:
        address: of the first number.
        shape: of the array.
        dtype: numpy's, of whole or floating numbers.
        owner: is kept until the consumer gives the memory back.
        versioned: of DLPack 1.0, else as before.
    """
    made: _Versioned | _Managed = _Versioned(major=1) if versioned else _Managed()
    tensor, sizes = made.tensor, (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(shape))(*(int(np.prod(shape[i + 1 :])) for i in range(len(shape))))
    tensor.data, tensor.device_type, tensor.ndim = address, CUDA, len(shape)
    tensor.code, tensor.bits, tensor.lanes = _CODES[dtype.kind], dtype.itemsize * 8, 1
    tensor.shape, tensor.strides = (ctypes.cast(n, ctypes.POINTER(ctypes.c_int64)) for n in (sizes, steps))
    made.deleter = _delete
    where = ctypes.addressof(made)
    _lent[where] = (made, sizes, steps, owner)
    return _new(where, _VERSIONED_NAME if versioned else _NAME, _destroy)


def _give_back(where: int) -> None:
    _lent.pop(where, None)


def _give_back_unused(unused: int) -> None:
    """A capsule that was consumed has another name by now."""
    for name in (_NAME, _VERSIONED_NAME):
        if _has_name(unused, name):
            _give_back(_pointer(unused, name))


# One of each for all: they must outlive their calls.
_delete, _destroy = _DELETER(_give_back), _DESTRUCTOR(_give_back_unused)
