"""A verification report as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txl_export.verification.bisection.render import render_finding
from txl_export.verification.report import Report, SegmentResult

if TYPE_CHECKING:
    from rich.console import Console

# Longer runs show this many segments of the beginning and of the end, and the worst.
_SHOWN = 6


def render(report: Report, console: Console) -> None:
    """Print the segments, the totals and the verdict."""
    from rich.markup import escape
    from rich.table import Table

    r = report
    console.print(
        f"[bold]{escape(r.bundle)}[/] (layout {r.layout}, M = {r.mem_len}, {r.backend}) "
        f"against {escape(r.checkpoint)} (eager): "
        f"{len(r.segments)} segments of {r.segment_len} tokens, B = {r.batch_size}, {r.source}"
    )
    table = Table(box=None, header_style="bold")
    for name in ("segment", "token", "max err", "mean err", "KL", "top-1", "top-5", "memory", "layer"):
        table.add_column(name, justify="right", no_wrap=True)
    shown, last = _selection(r), -1
    for s in shown:
        if s.index > last + 1:
            table.add_row("...")
        table.add_row(*_cells(s))
        last = s.index
    console.print(table)
    for line in _totals(r):
        console.print(line)
    for note in r.notes:
        console.print(f"[yellow]note:[/] {escape(note)}")
    verdict = "[bold green]PASSED[/]" if r.passed else f"[bold red]FAILED[/] {escape(str(r.failure))}"
    console.print(verdict)
    if r.bisect:
        render_finding(r.bisect, console)


def _selection(r: Report) -> list[SegmentResult]:
    if len(r.segments) <= 2 * _SHOWN + 1:
        return list(r.segments)
    worst = max(r.segments, key=lambda s: s.measures.max_abs)
    picked = {s.index: s for s in (*r.segments[:_SHOWN], worst, *r.segments[-_SHOWN:])}
    return [picked[i] for i in sorted(picked)]


def _cells(s: SegmentResult) -> list[str]:
    m = s.measures
    share = max(s.memory, default=0.0)
    layer = str(s.memory.index(share)) if share else "-"
    return [
        str(s.index),
        str(s.start),
        f"{m.max_abs:.1e}",
        f"{m.mean_abs:.1e}",
        "-" if m.kl is None else f"{m.kl:.1e}",
        "-" if m.top1 is None else f"{m.top1:.1%}",
        "-" if m.top5 is None else f"{m.top5:.1%}",
        f"{share:.1e}",
        layer,
    ]


def _totals(r: Report) -> list[str]:
    limits = r.limits
    lines = []
    if limits.log_probs is not None:
        lines.append(f"largest error {r.max_abs:.1e} (tolerance {limits.log_probs:.1e})")
    if r.perplexities and r.perplexity_difference is not None:
        found, expected = r.perplexities
        judged = f"tolerance {limits.perplexity:.1e}" if r.real else "not judged on random tokens"
        lines.append(
            f"perplexity {found:.6f}, reference {expected:.6f}: {r.perplexity_difference:.1e} apart ({judged})"
        )
    lines.append(f"trend: {r.trend.describe()}")
    if r.noise:
        lines.append(f"the reference's own rounding here (float32 against float64): {r.noise.log_probs:.1e}")
    return lines
