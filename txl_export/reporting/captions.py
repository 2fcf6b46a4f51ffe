"""Pictures in words: what someone learns who does not see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txl_export.benchmarking.table import Row, Table
from txl_export.reporting.choice import quality_shown
from txl_export.reporting.series import (
    Line,
    Point,
    latency_point,
    lines_of,
    quality_lines,
    quality_unit,
    row_labels,
    throughput_point,
)
from txl_export.reporting.words import error, listed, ms
from txl_export.verification.report import Report

# More lines or layers than these are told by their extremes.
_FEW_LINES, _FEW_LAYERS = 4, 8


def latency_caption(table: Table, rows: Sequence[Row]) -> list[str]:
    """Milliseconds at the shortest and the longest memory, per L."""
    return _timed_caption(table, rows, latency_point, "M", _ms)


def throughput_caption(table: Table, rows: Sequence[Row]) -> list[str]:
    """Tokens per second at the fewest and at the most streams, per L."""
    return _timed_caption(table, rows, throughput_point, "B", _rate)


def _timed_caption(
    table: Table, rows: Sequence[Row], point: Callable[[Row], Point], axis: str, say: Callable[[float], str]
) -> list[str]:
    """A sentence per L: every line from its first point to its last."""
    label, sentences = row_labels(table.rows), []
    for length in sorted({row.segment_len for row in rows}):
        lines = lines_of([row for row in rows if row.segment_len == length], label, point)
        told = [f"{line.label} {_span(line, axis, say)}" for line in _extremes(lines)]
        sentences.append(f"Calls of {length} token{'s' if length > 1 else ''}: {'; '.join(told)}.")
    return sentences


def quality_caption(table: Table) -> list[str]:
    """Every figure of quality, by text."""
    found = quality_shown(table)
    unit = quality_unit(found)
    told = [
        f"On {line.label}: {listed([f'{unit.say(p.y)} at M = {p.x}' for p in line.points])}"
        for line in quality_lines(found, unit)[:_FEW_LINES]
    ]
    title = f"{unit.name[0].upper()}{unit.name[1:]}, less is better; the axis does not start at zero."
    return [title, *(f"{line}." for line in told)]


def _extremes(lines: Sequence[Line]) -> list[Line]:
    if len(lines) <= _FEW_LINES:
        return list(lines)
    ordered = sorted(lines, key=lambda line: line.ys[-1])
    return [ordered[0], ordered[-1]]


def _ms(value: float) -> str:
    return f"{ms(value)} ms"


def _rate(value: float) -> str:
    return f"{value:,.0f} tokens/s"


def _span(line: Line, symbol: str, number: Callable[[float], str]) -> str:
    first, last = line.points[0], line.points[-1]
    start = f"{number(first.y)} at {symbol} = {first.x}"
    return start if first is last else f"{start}, {number(last.y)} at {symbol} = {last.x}"


def drift_caption(report: Report) -> list[str]:
    """The largest error, where it is, and the trend."""
    worst = max(report.segments, key=lambda s: s.measures.max_abs)
    limit = report.limits.log_probs
    tolerance = f"; the tolerance is {error(limit)}" if limit else ""
    return [
        f"{len(report.segments)} segments of {report.segment_len} tokens: the largest error is "
        f"{error(worst.measures.max_abs)}, in segment {worst.index}{tolerance}.",
        f"Trend: {report.trend.describe()}.",
    ]


def layers_caption(report: Report) -> list[str]:
    """The worst share of each layer, or of the worst layer where there are many."""
    worst = [max(shares) for shares in zip(*(s.memory for s in report.segments), strict=True)]
    where = max(range(len(worst)), key=lambda n: worst[n])
    shares = [f"layer {n} {error(share)}" for n, share in enumerate(worst)]
    told = listed(shares) if len(worst) <= _FEW_LAYERS else f"largest in {shares[where]}"
    return [
        f"Largest difference in the worst segment, as a share of the layer's largest number: {told}.",
        f"From {error(report.memory_share)} a layer is named as the place of an error.",
    ]
