"""A benchmark as a table for people, and what it comes to in a line."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from txl_export.benchmarking.table import EAGER, Row, Table

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = ("M", "L", "B", "p50 ms", "p90 ms", "p99 ms", "tokens/s", "× eager")


# Rounds whose ratios differ by more than this factor say more about the machine than about the model.
_DISTURBED = 2.0


def render(table: Table, console: Console) -> None:
    """Print the rows and their reading."""
    from rich.markup import escape
    from rich.table import Table as Grid

    targets = list(dict.fromkeys(row.target for row in table.rows))
    console.print(
        f"[bold]{escape(', '.join(targets))}[/]: milliseconds per call of L tokens and B streams, memory of M tokens; "
        f"{escape(_conditions(table))}"
    )
    grid = Grid(box=None, header_style="bold")
    if len(targets) > 1:
        grid.add_column("target", overflow="fold")
    grid.add_column("backend")
    for name in _COLUMNS:
        grid.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        grid.add_row(*([escape(row.target)] if len(targets) > 1 else []), *_cells(row))
    console.print(grid)
    console.print(escape(reading(table)))
    if any(row.ratio and row.ratio.high > _DISTURBED * row.ratio.low for row in table.rows):
        console.print(
            "[yellow]note:[/] ratios vary widely between rounds: the machine was busy, measure again when quiet"
        )


def _conditions(table: Table) -> str:
    m = table.machine
    threads = f"{table.threads} thread{'s' if table.threads > 1 else ''}"
    heads = ", ".join(dict.fromkeys(row.head for row in table.rows))
    return f"head {heads}, {threads} each, {table.rounds} rounds in turn, {m.get('cpu', 'unknown CPU')}"


def _cells(row: Row) -> list[str]:
    lengths = [str(n) for n in (row.mem_len, row.segment_len, row.batch_size)]
    times = [_ms(t) for t in (row.p50_ms, row.p90_ms, row.p99_ms)]
    return [_name(row), *lengths, *times, f"{row.tokens_per_second:,.0f}", _ratio(row)]


def _name(row: Row) -> str:
    return row.backend if row.backend == EAGER else f"{row.backend} {row.layout}"


def _ms(t: float) -> str:
    return f"{t:.3f}" if t < 1 else f"{t:.2f}" if t < 100 else f"{t:.0f}"


def _ratio(row: Row) -> str:
    """The ratio and, where there is one, its spread."""
    if row.ratio is None or row.backend == EAGER:
        return "-" if row.ratio is None else "1"
    return f"{row.ratio.median:.2f} ({row.ratio.low:.2f}–{row.ratio.high:.2f})"


def reading(table: Table) -> str:
    """What the table comes to, in a line: the fastest backend against eager, or how time grows with M."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in table.rows:
        groups.setdefault((row.target, _name(row)), []).append(row)
    compared = [rows for rows in groups.values() if rows[0].backend != EAGER and rows[0].ratio]
    if compared:
        return _against_eager(max(compared, key=_median_ratio))
    return _growth(min(groups.values(), key=lambda rows: statistics.median(r.p50_ms for r in rows)))


def _median_ratio(rows: list[Row]) -> float:
    return statistics.median(r.ratio.median for r in rows if r.ratio)


def _against_eager(rows: list[Row]) -> str:
    """Least and most of the ratios, and where they are."""
    ratios = [(row.ratio.median, row) for row in rows if row.ratio]
    low, worst = min(ratios, key=lambda pair: pair[0])
    high, best = max(ratios, key=lambda pair: pair[0])
    span = f"{high:.1f} ({_where(best)})"
    if len(ratios) > 1:
        span = f"{low:.1f} ({_where(worst)}) to {span}"
    return f"{_name(best)} is {span} times as fast as eager per call."


def _growth(rows: list[Row]) -> str:
    """How the time per call grows from the shortest memory to the longest."""
    short, long = min(rows, key=lambda r: r.mem_len), max(rows, key=lambda r: r.mem_len)
    if short.mem_len == long.mem_len:
        return f"{_name(short)} takes {_ms(short.p50_ms)} ms per call ({_where(short)})."
    return (
        f"{_name(short)} takes {_ms(short.p50_ms)} ms per call at {_where(short)} and {_ms(long.p50_ms)} ms "
        f"at {_where(long)}."
    )


def _where(row: Row) -> str:
    return f"M = {row.mem_len}, L = {row.segment_len}, B = {row.batch_size}"
