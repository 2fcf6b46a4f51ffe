"""Memory of the host that is not page-locked: numpy arrays among the variables of whoever asks for a copy.

CUDA takes any address of the process. Here the array that holds it is looked for, so that a copy beyond its end is
seen, and a copy that happens after the array has gone harms nobody.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np

from tests.standin.memory import GARBAGE, Range

_NEAR = 12  # callers that are looked at
_OURS = 2  # references to an array that nobody else holds: our own, and the one that asks


class Pageable:
    """An array that a queued copy reads or writes."""

    def __init__(self, array: np.ndarray) -> None:
        """Hold what owns its memory."""
        self._root: np.ndarray = array
        while isinstance(self._root.base, np.ndarray):
            self._root = self._root.base

    def view(self, range_: Range) -> np.ndarray:
        """The bytes of a range that lies in it, uint8; others in their place when everybody else let go of it."""
        if sys.getrefcount(self._root) <= _OURS:
            return np.full(range_.size, GARBAGE, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_uint8 * range_.size).from_address(range_.address))


def find(span: Range) -> Pageable | None:
    """The array that a range lies in, of the variables of the functions that led here; None where there is none."""
    for array in _near(sys._getframe(1)):
        first, end = np.lib.array_utils.byte_bounds(array)
        if first <= span.address and span.address + span.size <= end:
            return Pageable(array)
    return None


def _near(frame: FrameType | None) -> Iterator[np.ndarray]:
    for _ in range(_NEAR):
        if frame is None:
            return
        for value in _variables(frame):
            for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                if isinstance(one, np.ndarray):
                    yield one
        frame = frame.f_back


def _variables(frame: FrameType) -> list[Any]:
    """Values of a function's variables; up to Python 3.12 a frame holds on to those that it was asked for."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return []
    held = frame.f_locals
    values = list(held.values())
    if sys.version_info < (3, 13):
        held.clear()
    return values
