"""How one tensor differs from another: rounded, scaled, transposed, reordered, shifted, or in a few places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from txl_export.verification.bisection.numbers import differences, largest, scale

# Two tensors count as equal under a change when they agree to this share of the largest number.
_SAME = 1e-6
# Steps of a quantised tensor: more distinct values than this in a channel are no quantisation.
_STEPS = 256
_SAMPLE = 1 << 14  # numbers of a large tensor that are looked at first
_MOST_ROWS = 64  # a table is tried with its rows shifted by up to this many


def describe(found: np.ndarray, expected: np.ndarray) -> str:
    """The simplest change that turns `expected` into `found`, in words that follow "it"."""
    if found.shape != expected.shape:
        return f"has shape {list(found.shape)}, expected {list(expected.shape)}"
    if not expected.size or expected.dtype.kind in "iub" or found.dtype.kind in "iub":
        return _places(found, expected)
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return next((told for change in CHANGES if (told := change(a, b))), None) or _places(found, expected)


def rounded_to(found: np.ndarray, expected: np.ndarray) -> str | None:
    """What `found` was rounded to, such as "float16" or "200 steps, as by int8"; None when rounding is not it."""
    if found.shape != expected.shape or not expected.size or expected.dtype.kind in "iub":
        return None
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return low_precision(a, b) or _steps(a, b)


def low_precision(found: np.ndarray, expected: np.ndarray) -> str | None:
    """The type that `found` was rounded to, such as "float16"; None when rounding does not explain it."""
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.isfinite(a).all():
        return None
    for name, dtype in _half_types().items():
        with np.errstate(over="ignore"):
            rounded = b.astype(dtype).astype(np.float64)
        # One unit in the last place is forgiven: the number may have been rounded from one that differs a little.
        step = np.abs(b) * _UNIT[name] + 1e-7
        if (np.abs(a - rounded) <= step).all() and np.count_nonzero(a == rounded) > 0.5 * a.size:
            return name
    return None


_UNIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def _half_types() -> dict[str, Any]:
    import ml_dtypes

    return {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and largest(differences(a, b))[0] <= _SAME * scale(b)


def _missing(a: np.ndarray, b: np.ndarray) -> str | None:
    del b
    return "is all zeros" if not a.any() else None


def _not_finite(a: np.ndarray, b: np.ndarray) -> str | None:
    del b
    n = int(np.count_nonzero(~np.isfinite(a)))
    return f"holds {n} infinite or NaN" if n else None


def _rounded(a: np.ndarray, b: np.ndarray) -> str | None:
    told = low_precision(a, b) or _steps(a, b)
    return f"is rounded to {told}" if told else None


def _scaled(a: np.ndarray, b: np.ndarray) -> str | None:
    factor = float((a * b).sum() / (b * b).sum()) if b.any() else 0.0
    return f"is multiplied by {factor:.6g}" if factor and b.size > 1 and _alike(a, factor * b) else None


def _transposed(a: np.ndarray, b: np.ndarray) -> str | None:
    square = b.ndim >= 2 and b.shape[-1] == b.shape[-2]
    return "is transposed" if square and _alike(a, b.swapaxes(-1, -2)) else None


def _shifted(a: np.ndarray, b: np.ndarray) -> str | None:
    """By k along an axis, whatever came in at the end."""
    for axis in reversed(range(b.ndim)) if b.ndim > 1 else ():
        n = b.shape[axis]
        x, y = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
        for k in range(1, min(_MOST_ROWS, (n - 1) // 2) + 1):
            for sign, late, early in (("+", x, y), ("-", y, x)):
                # One row in the middle first: whole tables are large.
                if _alike(late[n // 2], early[n // 2 - k]) and _alike(late[k:], early[: n - k]):
                    return f"is shifted by {sign}{k} row{'s' * (k > 1)} along axis {axis}"
    return None


def _reordered(a: np.ndarray, b: np.ndarray) -> str | None:
    """By rows or columns, told apart by their sums."""
    for axis, word in ((0, "rows"), (1, "columns")) if b.ndim == 2 else ():
        x, y = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
        if _alike(x[x.sum(1).argsort()], y[y.sum(1).argsort()]):
            moved = int((differences(x, y).max(1) > _SAME * scale(b)).sum())
            return f"has {moved} {word} in another order"
    return None


def _steps(a: np.ndarray, b: np.ndarray) -> str | None:
    """Few distinct values, each near what it stands for."""
    if np.unique(a.ravel()[:_SAMPLE]).size > _STEPS:
        return None
    distinct = np.unique(a).size
    near = 0 < scale(a - b) <= 0.02 * scale(b)
    return f"{distinct} steps, as by int8" if distinct <= _STEPS < a.size and near else None


def _clamped(a: np.ndarray, b: np.ndarray) -> str | None:
    """Of a table whose last axis counts distances falling to 0: another distance from which all are one row."""
    if b.ndim < 2:
        return None
    there, expected = _clamp(a), _clamp(b)
    if there == expected:
        return None
    rest = min(there, expected) + 1
    same = b.shape[-1] > rest and _alike(a[..., -rest:], b[..., -rest:])
    return f"is clamped at distance {there}, expected {expected}" if same else None


def _clamp(table: np.ndarray) -> int:
    """The distance from which on all columns are the farthest's."""
    n = table.shape[-1]
    equal = [j for j in range(n) if np.array_equal(table[..., j], table[..., 0])]
    run = next((j for j, k in enumerate(equal) if j != k), len(equal))
    return n - run


# Simplest first; one line each. A change takes found and expected, float64 and of one shape.
CHANGES: list[Callable[[np.ndarray, np.ndarray], str | None]] = [
    _not_finite, _missing, _scaled, _transposed, _shifted, _reordered, _rounded, _clamped,
]  # fmt: skip


def _places(found: np.ndarray, expected: np.ndarray) -> str:
    apart = differences(found, expected)
    count = int(np.count_nonzero(apart > _SAME * scale(expected)))
    error, at = largest(apart)
    there, should = found[at], expected[at]
    spot = f" at {list(at)}" if at else ""
    numbers = f"{there:.6g}, expected {should:.6g}" if found.dtype.kind == "f" else f"{there}, expected {should}"
    rest = f"; differs in {count} of {apart.size} numbers, by up to {error:.3g}" if apart.size > 1 else ""
    return f"holds {numbers}{spot}{rest}"
