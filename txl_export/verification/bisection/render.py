"""A finding for people: the paragraph, and how far each part is from the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txl_export.verification.bisection.finding import Finding
from txl_export.verification.bisection.layers import PartError

if TYPE_CHECKING:
    from rich.console import Console


def render_finding(finding: Finding, console: Console) -> None:
    """Print the parts of the call in which accuracy is lost, and the paragraph about it."""
    from rich.markup import escape
    from rich.table import Table

    worst = {
        p: max((e for e in finding.parts if e.part == p), key=_beyond)
        for p in dict.fromkeys(e.part for e in finding.parts)
    }
    if worst:
        table = Table(box=None, header_style="bold")
        for name in ("part", "value", "max err", "rounding", ""):
            table.add_column(name, justify="left" if name in ("part", "value", "") else "right", no_wrap=True)
        for part, e in worst.items():
            error = "-" if e.error is None else f"{e.error:.1e}"
            table.add_row(escape(part), escape(e.value), error, f"{e.allowed:.1e}", "[red]lost[/]" if e.lost else "")
        console.print(table)
    console.print(escape(finding.text))


def _beyond(e: PartError) -> float:
    return (e.error or 0.0) / (e.allowed or 1e-30)
