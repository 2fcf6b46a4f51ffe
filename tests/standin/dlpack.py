"""DLPack capsules, as libraries of device arrays make them: the structures of dlpack.h 1.0 through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CUDA = 2  # kDLCUDA
READ_ONLY = 1  # of a versioned tensor's flags
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
# Capsules keep the address of their name.
_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"
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
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# What capsules point to, by address, until their deleter is called.
_alive: dict[int, tuple[Any, ...]] = {}


def capsule(
    address: int,
    like: np.ndarray,
    strides: Sequence[int] | None,
    deleted: Callable[[], None],
    versioned: bool = False,
    read_only: bool = False,
) -> Any:
    """A capsule of memory on device 0.

    Args:
        address: of the first number.
        like: has its shape and type.
        strides: in numbers; None where rows follow each other.
        deleted: is called when the consumer, or the unused capsule, gives the memory back; whose method it is is kept
            until then.
        versioned: of DLPack 1.0, else as before.
        read_only: whether a consumer must not write; only a versioned capsule can tell.
    """
    made = _Versioned() if versioned else _Managed()
    tensor, dims = made.tensor, ctypes.c_int64 * max(1, like.ndim)
    shape, steps = dims(*like.shape), dims(*strides) if strides is not None else None
    tensor.data, tensor.device_type, tensor.ndim = address, CUDA, like.ndim
    tensor.code, tensor.bits, tensor.lanes = _CODES[like.dtype.kind], like.dtype.itemsize * 8, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    if steps is not None:
        tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    if versioned:
        made.major, made.minor, made.flags = 1, 0, READ_ONLY * read_only
    where = ctypes.addressof(made)

    made.deleter = _delete
    _alive[where] = (deleted, made, shape, steps)
    return _new(where, _VERSIONED_NAME if versioned else _NAME, _destroy)


@_DELETER
def _delete(where: int) -> None:
    """The function that is called must outlive the call: one for all. A second time is an error."""
    _alive.pop(where)[0]()


@_DESTRUCTOR
def _destroy(unused: int) -> None:
    """A capsule that was consumed has another name by now."""
    for name, kind in ((_NAME, _Managed), (_VERSIONED_NAME, _Versioned)):
        if _is_valid(unused, name):
            where = _pointer(unused, name)
            kind.from_address(where).deleter(where)
