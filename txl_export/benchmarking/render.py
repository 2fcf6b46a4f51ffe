"""A benchmark as tables in a terminal of 120 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txl_export.benchmarking.columns import LEGEND, QUALITY_TITLES, TERMINAL, Column, columns, quality_cells
from txl_export.benchmarking.notes import abilities, conditions, notes, read_as, reading
from txl_export.benchmarking.table import Quality, Row, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid


def render(table: Table, console: Console) -> None:
    """Print the rows target by target, what each memory length is worth, and how to read them."""
    from rich.markup import escape

    for target in dict.fromkeys([*(r.target for r in table.rows), *(q.target for q in table.quality)]):
        console.print(
            f"[bold]{escape(target)}[/]: milliseconds per call of L tokens and B streams, memory of M tokens; "
            f"{escape(conditions(table))}"
        )
        _print_rows([r for r in table.rows if r.target == target], columns(table, TERMINAL), console)
        _print_quality([q for q in table.quality if q.target == target], console)
    console.print(escape(reading(table)))
    if table.rows:
        console.print(f"[dim]{escape(LEGEND)}[/]")
    can = abilities(table)
    if can:
        console.print(f"[dim]limit: {escape(can)}[/]")
    for note in notes(table):
        console.print(f"[yellow]note:[/] {escape(note)}")


def _print_rows(rows: Sequence[Row], shown: Sequence[Column], console: Console) -> None:
    from rich.markup import escape

    if not rows:
        return
    grid = _grid()
    for i, column in enumerate(shown):
        grid.add_column(escape(column.title), justify="right" if i else "left", no_wrap=i > 0)
    for row in rows:
        grid.add_row(*(escape(column.text(row)) for column in shown))
    console.print(grid)


def _print_quality(found: Sequence[Quality], console: Console) -> None:
    from rich.markup import escape

    if not found:
        return
    console.print(escape(read_as(found[0])))
    grid = _grid()
    for title in QUALITY_TITLES:
        grid.add_column(title, justify="right")
    for q in found:
        grid.add_row(*quality_cells(q))
    console.print(grid)


def _grid() -> Grid:
    from rich.table import Table as Grid

    return Grid(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
