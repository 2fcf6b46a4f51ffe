"""Whether errors grow with the number of segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Fewer segments than this past the first filling of all memories say nothing about a trend.
ENOUGH = 8
# A slope this many standard errors above zero is not chance ...
_SIGNIFICANT = 4.0
# ... and matters once the fitted error at the end is this many times the one at the beginning.
_GROWTH = 1.5


@dataclass(frozen=True)
class Trend:
    """A line fitted to the largest error of each segment.

    Attributes:
        segments: how many were fitted: those beyond n_layer x M tokens.
        slope: growth of the error per segment; None when too few.
        drifts: whether it grows; None when too few to tell.
        needed: tokens per stream that a run needs for an answer.
    """

    segments: int
    slope: float | None
    drifts: bool | None
    needed: int

    def describe(self) -> str:
        """One line for people."""
        if self.drifts is None:
            return f"too short to tell: it needs {self.needed} tokens per stream (n_layer x M and {ENOUGH} segments)"
        word = "error GROWS" if self.drifts else "no drift"
        return f"{word} over {self.segments} segments beyond n_layer x M tokens ({self.slope:+.1e} per segment)"


def fit(errors: list[float], tokens: list[int], settled: int, segment_len: int) -> Trend:
    """Fit the errors of segments that begin beyond `settled` tokens.

    Args:
        errors: largest error of each segment.
        tokens: tokens that each stream had consumed before the segment.
        settled: n_layer x M.
        segment_len: tokens per segment.
    """
    y = np.array([e for e, t in zip(errors, tokens, strict=True) if t >= settled])
    needed = settled + ENOUGH * segment_len
    if len(y) < ENOUGH or not np.isfinite(y).all():
        return Trend(len(y), None, None, needed)
    x = np.arange(len(y)) - (len(y) - 1) / 2
    slope = float((x * y).sum() / (x * x).sum())
    residual = y - y.mean() - slope * x
    spread = float(np.sqrt((residual @ residual) / (len(y) - 2) / (x * x).sum()))
    first, last = y.mean() + slope * x[0], y.mean() + slope * x[-1]
    grows = slope > _SIGNIFICANT * spread and last > _GROWTH * max(first, 0.0)
    return Trend(len(y), slope, bool(grows), needed)
