"""Pictures of a verification: errors by segment, and the memory's error by layer.

Each gives a matplotlib `Figure`, or None where there is nothing to show.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from txl_export.reporting.axes import scale_errors
from txl_export.reporting.style import INK, LIMIT, MUTED, legend, legend_rows, looks, name_values, panels, styled
from txl_export.verification.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a head's answers are measured in.
_UNITS = {"features": "largest difference of a feature (as the model gives it)"}
_NATS = "largest difference of a log-probability (nats)"
LARGEST, BEYOND = "largest error", "beyond n_layer × M"
TOLERANCE, FITTED, EXACT, INFINITE = "tolerance", "trend", "no difference at all", "not finite"
LAYER_WORST, LAYER_TYPICAL, LAYER_SHARE = "worst segment", "median segment", "counts as different"


def drift(report: Report, title: str = "Error by segment") -> Figure | None:
    """Largest error of every segment on a logarithmic scale, the tolerance, and where the trend was fitted.

    Segments without any difference stand at the lower edge, those that are not finite at the upper.

    Returns:
        None where every segment is equal bit for bit.
    """
    errors = [s.measures.max_abs for s in report.segments]
    positive = [e for e in errors if e > 0 and math.isfinite(e)]
    if not any(errors):
        return None
    limit = report.limits.log_probs
    with styled():
        names = _names(report, errors)
        figure, (ax,) = panels(title, 1, legend_rows(names))
        scale = positive + ([limit] if limit else [])
        low, high = scale_errors(ax, scale or [1.0])
        handles = {LARGEST: _dots(ax, errors)}
        handles |= _references(ax, report, errors, limit)
        handles |= _edges(ax, errors, low, high)
        _number(ax, [s.index for s in report.segments], f"segment ({_length(report)})")
        name_values(ax, _UNITS.get(report.head.partition("@")[0], _NATS))
        legend(figure, [handles[n] for n in names], names)
    return figure


def memory_by_layer(report: Report, title: str = "Error of the memory by layer") -> Figure | None:
    """Largest difference of each layer's memory, as a share of the layer's largest number.

    Returns:
        None where there is no memory, or all of it is equal bit for bit.
    """
    layers = list(zip(*(s.memory for s in report.segments), strict=True))
    worst = [max(shares) for shares in layers]
    finite = [x for shares in layers for x in shares if x > 0 and math.isfinite(x)]
    if not any(worst) or not finite:
        return None
    names = [LAYER_WORST, LAYER_TYPICAL, LAYER_SHARE]
    with styled():
        figure, (ax,) = panels(title, 1, legend_rows(names))
        typical = [statistics.median(shares) for shares in layers]
        shown = [x for x in (*worst, *typical) if x > 0 and math.isfinite(x)]
        low, high = scale_errors(ax, [*shown, report.memory_share])
        at, color = range(len(worst)), looks([LAYER_WORST])[LAYER_WORST].color
        median: dict[str, Any] = {"color": INK, "markersize": 11, "markeredgewidth": 1.6, "zorder": 4}
        ax.vlines(at, ax.get_ylim()[0], _within(worst, low, high), color="#c9d1d9", linewidth=1.4, zorder=1)
        handles = ax.plot(at, _within(worst, low, high), "o", color=color, zorder=3)
        handles += ax.plot(at, _within(typical, low, high), "_", **median)
        handles += ax.plot([-0.5, len(worst) - 0.5], [report.memory_share] * 2, **LIMIT)
        ax.set_xlim(-0.5, len(worst) - 0.5)
        _number(ax, range(len(worst)), "layer, 0 is nearest to the tokens")
        name_values(ax, "largest difference / largest number of the layer")
        legend(figure, handles, names)
    return figure


def _within(values: Sequence[float], low: float, high: float) -> list[float]:
    return [min(max(v, low), high) if v == v else high for v in values]


def _length(report: Report) -> str:
    return "1 token each" if report.segment_len == 1 else f"{report.segment_len} tokens each"


def _names(report: Report, errors: Sequence[float]) -> list[str]:
    present = {
        LARGEST: any(e > 0 and math.isfinite(e) for e in errors),
        TOLERANCE: bool(report.limits.log_probs),
        BEYOND: report.trend.drifts is not None,
        FITTED: report.trend.slope is not None,
        EXACT: any(e == 0 for e in errors),
        INFINITE: any(not math.isfinite(e) for e in errors),
    }
    return [name for name, there in present.items() if there]


def _dots(ax: Axes, errors: Sequence[float]) -> Any:
    """The errors; joined while there are few enough to follow."""
    look = looks([LARGEST])[LARGEST].options() | {"markersize": 3.6 if len(errors) > 24 else 5, "linewidth": 1.0}
    shown = [e if 0 < e < math.inf else math.nan for e in errors]
    return ax.plot(range(len(errors)), shown, **look, zorder=3, clip_on=False)[0]


def _references(ax: Axes, report: Report, errors: Sequence[float], limit: float | None) -> dict[str, Any]:
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    margin = 0.5 + 0.015 * len(errors)
    ax.set_xlim(-margin, len(errors) - 1 + margin)
    if limit:
        found[TOLERANCE] = ax.axhline(limit, **LIMIT)
    trend = report.trend
    if trend.drifts is not None:
        start = len(errors) - trend.segments
        ax.axvspan(start - 0.5, len(errors) - 1 + margin, color="#eef1f4", zorder=0, linewidth=0)
        found[BEYOND] = Patch(color="#dde2e7")
    if trend.slope is not None:
        fitted = errors[len(errors) - trend.segments :]
        middle, half = statistics.fmean(fitted), (trend.segments - 1) / 2
        ys = [middle + trend.slope * (i - half) for i in range(trend.segments)]
        x = range(len(errors) - trend.segments, len(errors))
        found[FITTED] = ax.plot(x, [y if y > 0 else math.nan for y in ys], color="#D55E00", linewidth=1.6, zorder=4)[0]
    return found


def _edges(ax: Axes, errors: Sequence[float], low: float, high: float) -> dict[str, Any]:
    """Marks of what a logarithmic scale has no place for."""
    found: dict[str, Any] = {}
    for name, y, marker, fits in (
        (EXACT, low, "v", lambda e: e == 0),
        (INFINITE, high, "^", lambda e: not math.isfinite(e)),
    ):
        at = [i for i, e in enumerate(errors) if fits(e)]
        if at:
            options: dict[str, Any] = {
                "color": MUTED if name == EXACT else "#D55E00",
                "markersize": 5,
                "linestyle": "none",
            }
            found[name] = ax.plot(at, [y] * len(at), marker=marker, clip_on=False, zorder=5, **options)[0]
    return found


def _number(ax: Axes, values: Sequence[int], name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    ax.set_xlabel(name)
    if len(values) <= 8:
        ax.set_xticks(list(range(len(values))), [str(v) for v in values])
