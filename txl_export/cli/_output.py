"""What verbs print: JSON or tables on stdout, progress on a terminal's stderr. rich is imported when used."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from txl_export.files import to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Report = Callable[[str, float, float], None]

PLAIN_WIDTH = 120  # of tables that go to a file or a pipe


def print_json(value: Any) -> None:
    """One JSON object."""
    click.echo(to_json(value))


def is_terminal(stream: TextIO) -> bool:
    """Whether someone watches."""
    return stream.isatty()


def console(markup: bool = False) -> Console:
    """Where tables go: stdout; without `markup`, brackets in names stay brackets."""
    from rich.console import Console

    width = None if is_terminal(sys.stdout) else PLAIN_WIDTH
    return Console(width=width, markup=markup, highlight=False, emoji=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> None:
    """A table whose first `left` columns hold words and the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left else "right")
    for row in rows:
        table.add_row(*map(str, row))
    out = console()
    out.print(f"\n{title}", soft_wrap=True)  # rich's own titles wrap at the width of the table
    out.print(table)


def print_fields(fields: dict[str, object]) -> None:
    """Names and values, one pair a line; pairs whose value is None are left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        if value is not None:
            table.add_row(name, str(value))
    console().print(table)


@contextlib.contextmanager
def progress(unit: str = "") -> Iterator[Report]:
    """A bar on stderr that leaves nothing behind; where stderr is no terminal, nothing at all.

    Args:
        unit: what is counted, to show its rate; empty for steps without a meaningful rate.

    Yields:
        What to call with (what is being done, steps done, steps in all).
    """
    if not is_terminal(sys.stderr):
        yield lambda *_: None
        return
    with _bar(unit) as bar:
        task = bar.add_task("", total=None)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)


def _bar(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "")

    console = Console(stderr=True, markup=False)
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), *[Rate()] * bool(unit)]
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
