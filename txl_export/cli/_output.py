"""What verbs print: JSON or tables on stdout, progress on a terminal's stderr. rich is imported when used."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from txl_export.files import to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

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


@contextlib.contextmanager
def long_progress() -> Iterator[tuple[Report, Callable[[str], None]]]:
    """Progress of what takes minutes: what is done stays as a line on stderr, also where that is no terminal.

    Yields:
        What to call with (what is being done, seconds spent, seconds in all), and with a line to leave behind.
    """
    if not is_terminal(sys.stderr):
        yield (lambda *_: None), (lambda line: click.echo(line, err=True))
        return
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            since = time.monotonic() - task.fields.get("at", 0.0)
            return Text("" if not task.total else left_over(task.total - task.completed - since))

    columns = (BarColumn(), Left(), TextColumn("{task.description}", markup=False))
    with _shown(*columns) as bar:
        task = bar.add_task("", total=None)

        def report(text: str, done: float, total: float) -> None:
            bar.update(task, description=text, completed=done, total=total, at=time.monotonic())

        yield report, lambda line: bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def left_over(seconds: float) -> str:
    """Remaining time in words: an estimate, so never to the second."""
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute left"
    if minutes < 90:
        return f"about {minutes:.0f} min left"
    return f"about {minutes / 60:.1f} h left"


def _bar(unit: str) -> Progress:
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "")

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), *[Rate()] * bool(unit)]
    return _shown(*columns, TimeRemainingColumn())


def _shown(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True, markup=False), transient=True)
