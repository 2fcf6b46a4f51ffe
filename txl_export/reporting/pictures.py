"""Pictures of a benchmark: what memory costs, what it is worth, and what more streams bring.

Each function takes a `Table` and gives a matplotlib `Figure`, or None where the table holds nothing to show:
there is no empty picture. matplotlib's own state (pyplot, settings) is neither used nor changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from txl_export.benchmarking.table import Row, Table
from txl_export.reporting.axes import label_lengths, scale_near, scale_values, spread_lengths
from txl_export.reporting.choice import fastest_rows, latency_rows, quality_shown, throughput_rows
from txl_export.reporting.series import (
    Labels,
    Line,
    Point,
    Unit,
    latency_point,
    lines_of,
    quality_lines,
    quality_unit,
    row_labels,
    throughput_point,
)
from txl_export.reporting.style import LIMIT, MUTED, Look, legend, legend_rows, looks, name_values, panels, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMORY_AXIS, STREAMS_AXIS = "memory length M (tokens)", "streams B"
LIMIT_LABEL, SPREAD_LABEL, P99_LABEL = "limit of the machine", "lowest to highest round", "p99"
# With more lines than these, marks of single calls cover each other.
_FEW = 4
# Of the slowest round: p99 beyond it would press the lines to the bottom.
_P99_ROOM = 2.5
_MOST_NUMBERS = 7


def latency(table: Table, batch_size: int | None = None, title: str = "Time per call") -> Figure | None:
    """Median milliseconds per call against M: a panel per L, a line per backend and layout.

    Bars reach from the fastest round's median to the slowest's; short marks are p99 where there is room for them;
    the dashed line is the machine's limit where it was measured.

    Args:
        table: a benchmark; its backends may be peers of any name.
        batch_size: streams B; None for the fewest of the table.
        title: of the picture.

    Returns:
        None where no row has that B.
    """
    rows = latency_rows(table, batch_size)
    if not rows:
        return None
    return _timed(table, rows, title, MEMORY_AXIS, latency_point, lambda row: row.segment_len, _call_words)


def throughput(table: Table, mem_len: int | None = None, title: str | None = None) -> Figure | None:
    """Tokens per second of all streams against B: a panel per L, a line per backend and layout.

    Args:
        table: a benchmark.
        mem_len: memory length M; None for the longest at which more than one B was measured.
        title: of the picture.

    Returns:
        None where no M was measured with more than one B.
    """
    rows = throughput_rows(table, mem_len)
    if not rows:
        return None
    named = title or f"Throughput with a memory of {rows[0].mem_len} tokens"
    return _timed(table, rows, named, STREAMS_AXIS, throughput_point, lambda row: row.segment_len, _throughput_words)


def quality(table: Table, title: str = "What memory is worth") -> Figure | None:
    """Bits per byte (perplexity where tokens are not bytes) against M: a line per text.

    Returns:
        None where no text was measured at more than one M.
    """
    found = quality_shown(table)
    if not found:
        return None
    unit = quality_unit(found)
    lines = quality_lines(found, unit)
    with styled():
        figure, (ax,) = panels(title, 1, legend_rows([line.label for line in lines]))
        places = spread_lengths(q.mem_len for q in found)
        handles = _quality_panel(ax, lines, unit, places)
        label_lengths(ax, places, MEMORY_AXIS)
        legend(figure, handles, [line.label for line in lines])
    return figure


def memory_tradeoff(table: Table, title: str = "How much memory?") -> Figure | None:
    """Quality above, milliseconds per call below, over one axis of M: what each step of memory brings and costs.

    Below stand the fewest streams, the shortest segments and, of each model, the backend that is fastest there.

    Returns:
        None where quality or times are not known at more than one M.
    """
    found = quality_shown(table)
    rows = fastest_rows(table)
    if not found or len({row.mem_len for row in rows}) < 2:
        return None
    unit, label = quality_unit(found), row_labels(table.rows)
    upper, lower = quality_lines(found, unit), lines_of(rows, label, latency_point)
    labels = [line.label for line in upper]
    with styled():
        places = spread_lengths([q.mem_len for q in found] + [row.mem_len for row in rows])
        style = looks([*labels, *(line.label for line in lower)])
        extra = _extras(lower)
        every = [*labels, *(line.label for line in lower), *extra]
        figure, (top, bottom) = panels(title, 2, legend_rows(every))
        handles = _quality_panel(top, upper, unit, places, style)
        handles += _times_panel(bottom, lower, places, style, _call_words(rows[0]))
        label_lengths(bottom, places, MEMORY_AXIS)
        legend(figure, [*handles, *extra.values()], every)
    return figure


def _call_words(row: Row) -> str:
    return f"ms per call of {_tokens(row.segment_len)}{_streams(row.batch_size)}"


def _throughput_words(row: Row) -> str:
    return f"tokens per second, calls of {_tokens(row.segment_len)}"


def _tokens(n: int) -> str:
    return "1 token" if n == 1 else f"{n} tokens"


def _streams(n: int) -> str:
    return "" if n == 1 else f" × {n} streams"


def _timed(
    table: Table,
    rows: Sequence[Row],
    title: str,
    axis: str,
    point: Callable[[Row], Point],
    panel: Callable[[Row], int],
    words: Callable[[Row], str],
) -> Figure:
    """Panels of measured lines with their legend."""
    label: Labels = row_labels(table.rows)
    base = next((label(row) for row in table.rows if row.backend == table.base), None)
    groups = {key: [row for row in rows if panel(row) == key] for key in sorted({panel(row) for row in rows})}
    lines = {key: lines_of(group, label, point) for key, group in groups.items()}
    # Every picture of a table gives a line the same look.
    style = looks(list(dict.fromkeys(label(row) for row in table.rows)), base)
    shown = _from_top([line for found in lines.values() for line in found])
    with styled():
        extra = _extras([line for found in lines.values() for line in found])
        names = [*shown, *extra]
        figure, axes = panels(title, len(groups), legend_rows(names))
        places = spread_lengths(p.x for found in lines.values() for line in found for p in line.points)
        drawn: dict[str, Any] = {}
        for ax, (key, found) in zip(axes, lines.items(), strict=True):
            handles = _times_panel(ax, found, places, style, words(groups[key][0]))
            drawn.update(zip([line.label for line in found], handles, strict=True))
        label_lengths(axes[-1], places, axis)
        legend(figure, [*(drawn[name] for name in shown), *extra.values()], names)
    return figure


def _from_top(lines: Sequence[Line]) -> list[str]:
    """Names in the order in which the lines end, as the legend lists them."""
    ends: dict[str, float] = {}
    for line in lines:
        ends.setdefault(line.label, line.ys[-1])
    return sorted(ends, key=lambda name: -ends[name])


def _times_panel(
    ax: Axes, lines: Sequence[Line], places: dict[int, float], style: dict[str, Look], words: str
) -> list[Any]:
    """Lines with their spread, p99 and limit; gives a handle per line."""
    limits, p99 = _limits(lines), _shows_p99(lines)
    handles = [_draw(ax, line, places, style[line.label], p99) for line in lines]
    if limits:
        at = [places[x] for x in limits]
        # A single point has no line: a short piece stands for it.
        reach = 0.0 if len(limits) > 1 else 0.05 * (max(places.values()) - min(places.values())) or 0.25
        ends = list(limits.values())
        ax.plot([at[0] - reach, *at, at[-1] + reach], [ends[0], *ends, ends[-1]], **LIMIT, zorder=1)
    values = [v for line in lines for p in line.points for v in (p.low, p.y, p.high, p.p99 if p99 else None)]
    powers = scale_values(ax, [v for v in (*values, *limits.values()) if v is not None])
    name_values(ax, words + (" (log scale)" if powers else ""))
    return handles


def _draw(ax: Axes, line: Line, places: dict[int, float], look: Look, p99: bool) -> Any:
    """A line, a bar from its lowest to its highest round at each point, and p99 where asked for."""
    at, points = [places[x] for x in line.xs], line.points
    # The median of all calls may lie outside the medians of the rounds by a little.
    sides = [[max(0.0, p.y - p.low) for p in points], [max(0.0, p.high - p.y) for p in points]]
    ax.errorbar(at, line.ys, sides, fmt="none", ecolor=look.color, elinewidth=1.1, capsize=3, zorder=2)
    if p99:
        marks = [math.nan if p.p99 is None else p.p99 for p in points]
        ax.plot(at, marks, "_", color=look.color, markersize=7, markeredgewidth=1.1)
    return ax.plot(at, line.ys, **look.options(), zorder=3)[0]


def _limits(lines: Sequence[Line]) -> dict[int, float]:
    """The machine's limit at each x: the lowest, where lines have several."""
    found: dict[int, float] = {}
    for line in lines:
        for p in line.points:
            if p.limit is not None:
                found[p.x] = min(found.get(p.x, p.limit), p.limit)
    return dict(sorted(found.items()))


def _shows_p99(lines: Sequence[Line]) -> bool:
    slowest = max(p.high for line in lines for p in line.points)
    marks = [p.p99 for line in lines for p in line.points]
    known = [m for m in marks if m is not None]
    return len(lines) <= _FEW and len(known) == len(marks) and max(known) <= _P99_ROOM * slowest


def _extras(lines: Sequence[Line]) -> dict[str, Any]:
    """What the legend explains beside the lines."""
    from matplotlib.lines import Line2D

    found: dict[str, Any] = {}
    if _limits(lines):
        found[LIMIT_LABEL] = Line2D([], [], **LIMIT)
    if any(p.high > p.low for line in lines for p in line.points):
        found[SPREAD_LABEL] = Line2D([], [], color=MUTED, marker="|", linestyle="none", markersize=10)
    if _shows_p99(lines):
        found[P99_LABEL] = Line2D([], [], color=MUTED, marker="_", linestyle="none", markersize=8)
    return found


def _quality_panel(
    ax: Axes, lines: Sequence[Line], unit: Unit, places: dict[int, float], style: dict[str, Look] | None = None
) -> list[Any]:
    """Lines of quality; a single one carries its numbers. The axis need not start at zero."""
    style = style or looks([line.label for line in lines])
    handles = []
    for line in lines:
        handles += ax.plot([places[x] for x in line.xs], line.ys, **style[line.label].options(), zorder=3)
    powers = scale_near(ax, [y for line in lines for y in line.ys])
    name_values(ax, unit.name + (" (log scale)" if powers else ""))
    if len(lines) == 1 and len(lines[0].points) <= _MOST_NUMBERS and not powers:
        _write_values(ax, lines[0], unit, places)
    return handles


def _write_values(ax: Axes, line: Line, unit: Unit, places: dict[int, float]) -> None:
    """The numbers beside the points of a line, each on the side that the line leaves free."""
    for i, p in enumerate(line.points):
        last = i == len(line.points) - 1
        rises = line.ys[min(i + 1, len(line.ys) - 1)] > p.y if not last else line.ys[i - 1] > p.y
        options: dict[str, Any] = {
            "ha": "center" if last else "left",
            "va": "top" if rises else "bottom",
            "fontsize": 9.3,
        }
        away = (0 if last else 3, -6 if rises else 4)
        ax.annotate(unit.say(p.y), (places[p.x], p.y), away, textcoords="offset points", **options)
