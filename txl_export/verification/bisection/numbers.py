"""Distances and ranges of arrays that may hold infinities, NaN, integers or booleans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# What one operation may be off by, in units of the last place of its largest number: in float32, where long sums
# round in different orders, and in a half precision, whose sums are formed in float32 and rounded once or twice.
_ULPS = {np.dtype(np.float32): 16 * 2.0**-23, np.dtype(np.float16): 4 * 2.0**-10}
_ONE = _ULPS[np.dtype(np.float32)]
# ... and how many times the difference between float32 and float64 on the same inputs: orders of summation differ.
_FACTOR = 16.0


@dataclass(frozen=True)
class Range:
    """The finite values of an array.

    Attributes:
        low: the smallest.
        high: the largest.
        dtype: numpy's name of the element type.
        shape: of the array.
        nonfinite: how many values are infinite or NaN.
    """

    low: float
    high: float
    dtype: str
    shape: tuple[int, ...]
    nonfinite: int

    @classmethod
    def of(cls, array: np.ndarray, dtype: str | None = None) -> Range:
        """Measure an array; `dtype` is what to call its type where it was computed in a wider one."""
        values = np.asarray(array, np.float64)
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (float("nan"), float("nan"))
        return cls(low, high, dtype or str(array.dtype), tuple(array.shape), int(values.size - finite.size))

    def __str__(self) -> str:
        """Such as "float32 [-3.1, 4.2]", with the number of values that are not finite."""
        odd = f" and {self.nonfinite} not finite" if self.nonfinite else ""
        return f"{self.dtype} [{self.low:.6g}, {self.high:.6g}]{odd}"


def is_float(array: np.ndarray) -> bool:
    """Whether an array holds floating point numbers, bfloat16 and the like included."""
    return array.dtype.kind not in "iubSUO"


def differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Element by element |found - expected|, float64: 0 between equal infinities or NaN, else infinite there."""
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def largest(apart: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """The largest entry and where it is; 0 of an empty array."""
    if not apart.size:
        return 0.0, ()
    at = int(apart.argmax())
    return float(apart.reshape(-1)[at]), tuple(int(i) for i in np.unravel_index(at, apart.shape))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference; infinite for different shapes."""
    return largest(differences(found, expected))[0] if found.shape == expected.shape else float("inf")


def scale(array: np.ndarray) -> float:
    """The largest finite magnitude, 0 where there is none."""
    values = np.abs(np.asarray(array, np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))


def rounding(exact: np.ndarray, dtype: np.dtype | None) -> float:
    """What the type that a value should have explains: a few units in the last place of its largest number."""
    return _ULPS.get(dtype, 0.0) * scale(exact) if dtype is not None and is_float(exact) else 0.0


def allowance(exact: np.ndarray, rounded: np.ndarray) -> float:
    """What a value may differ by through rounding alone.

    Args:
        exact: computed in float64.
        rounded: from the same inputs in float32.

    Returns:
        0 for integers and booleans.
    """
    if not is_float(exact):
        return 0.0
    apart = differences(rounded, exact)
    return _FACTOR * scale(apart) + _ONE * scale(exact)
