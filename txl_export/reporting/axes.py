"""Axes of the pictures: lengths whose values are the ticks, values on a linear or a logarithmic scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from txl_export.reporting.words import ten
from txl_export.units import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Neighbours nearer than this share of the axis would be one blot: all are set at equal distances then.
_NEAREST = 1 / 11
# Of the axis, for one character of a tick's label, and between two labels.
_CHARACTER, _GAP = 0.0235, 0.025
# Values that are this many times apart are shown in powers.
_WIDE = 20.0
_MOST_STEPS = 6


def spread_lengths(values: Iterable[int]) -> dict[int, float]:
    """Where lengths stand: by their logarithm, 0 a step before the smallest; else at equal distances."""
    found = sorted(set(values))
    logs = [math.log2(v) for v in found if v > 0]
    steps = [b - a for a, b in itertools.pairwise(logs)]
    if found and found[0] == 0:
        logs.insert(0, (logs[0] if logs else 1) - (sum(steps) / len(steps) if steps else 1))
    places = dict(zip(found, logs, strict=True))
    nearest = min((b - a for a, b in itertools.pairwise(logs)), default=1)
    if len(logs) > 2 and nearest < _NEAREST * (logs[-1] - logs[0]):
        return {v: float(i) for i, v in enumerate(found)}
    return places


def label_lengths(ax: Axes, places: dict[int, float], name: str) -> None:
    """Set the ticks at the lengths themselves, and leave out labels that would touch; the last one stays."""
    first, last = min(places.values()), max(places.values())
    margin = (0.06 * (last - first)) or 1.0
    ax.set_xlim(first - margin, last + margin)
    span, edge, shown = last - first + 2 * margin, math.inf, []
    for value, place in sorted(places.items(), reverse=True):
        half = len(str(value)) * _CHARACTER / 2
        at = (place - first + margin) / span
        fits = at + half + _GAP <= edge
        shown.append((place, str(value) if fits else ""))
        edge = at - half if fits else edge
    ax.set_xticks([place for place, _ in shown], [text for _, text in shown])
    ax.set_xlabel(name)


def scale_values(ax: Axes, values: Sequence[float]) -> bool:
    """Choose the scale of positive values: from zero, or in powers where they lie far apart; True for powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = min(values), max(values)
    powers = low > 0 and high > _WIDE * low
    if powers:
        ax.set_yscale("log")
        ax.set_ylim(low / 1.4, high * 1.4)
        decades = math.log10(high / low)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.set_ylim(0, 1.12 * high or 1.0)
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _plain(v)))
    return powers


def scale_near(ax: Axes, values: Sequence[float]) -> bool:
    """The same without zero: a scale on which small differences show."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if scale_values(ax, values):
        return True
    low, high = min(values), max(values)
    room = 0.2 * (high - low) or 0.1 * abs(high) or 1.0
    ax.set_ylim(low - room, high + room)
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.6g}"))
    return False


def _plain(value: float) -> str:
    if value >= 1e15:
        return ten(round(math.log10(value)))
    return si(value).replace(".00 ", " ").replace(".0 ", " ") if value >= 10000 else f"{value:g}"


def scale_errors(ax: Axes, values: Sequence[float]) -> tuple[float, float]:
    """Whole powers of ten around positive finite values.

    Returns:
        The lowest and the highest power of ten.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    # Powers that a float holds, with the margins: beyond them it rounds to zero or overflows.
    first, last = (
        max(-300, min(300, p)) for p in (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))))
    )
    if last == first:
        last += 1
    step = -(-(last - first) // _MOST_STEPS)
    ax.set_yscale("log")
    ax.set_ylim(10.0**first * 0.7, 10.0**last * 1.7)  # what lies on a power of ten does not lie on the edge
    ax.yaxis.set_major_locator(FixedLocator([10.0**p for p in range(first, last + 1, step)]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: ten(round(math.log10(v)))))
    return 10.0**first, 10.0**last
