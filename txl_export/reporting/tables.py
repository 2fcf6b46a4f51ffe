"""Tables of the report: words and numbers in cells, ready to be shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txl_export.benchmarking.table import Row, Table
from txl_export.reporting.series import row_labels
from txl_export.reporting.tradeoff import Length, Tradeoff
from txl_export.reporting.words import clean, error, ms, size, times
from txl_export.verification.report import Report

# Of long verifications: segments of the beginning and of the end, beside the worst.
_SHOWN = 5
_SEGMENT_COLUMNS = (
    "segment",
    "first token",
    "largest error",
    "mean error",
    "KL (nats)",
    "best token agrees",
    "best five agree",
    "memory, share of its layer",
    "in layer",
)


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        caption: what it shows.
        columns: heads, with units.
        rows: cells; the first names its row.
        left: how many columns from the left hold words.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def bench_grid(table: Table) -> Grid:
    """Every row of a benchmark; columns that no row fills are left out."""
    label = row_labels(table.rows)
    columns: dict[str, Callable[[Row], str]] = {
        "backend": label,
        "M": lambda r: str(r.mem_len),
        "L": lambda r: str(r.segment_len),
        "B": lambda r: str(r.batch_size),
        "p50 (ms)": lambda r: ms(r.p50_ms),
        "rounds (ms)": lambda r: " – ".join(map(ms, r.spread_ms)),
        "p90 (ms)": lambda r: ms(r.p90_ms),
        "p99 (ms)": lambda r: ms(r.p99_ms),
        "mean (ms)": lambda r: ms(r.mean_ms),
        "tokens per second": lambda r: f"{r.tokens_per_second:,.0f}",
        f"times as fast as {clean(table.base)}": lambda r: _ratio(r, table.base),
        "share of the limit": lambda r: f"{r.limit_share:.0%} of {ms(r.limit.ms)} ms" if r.limit else "",
        "memory per stream": lambda r: size(r.memory_bytes),
        "first answer, cold (ms)": lambda r: ms(r.first_ms),
        "loading (ms)": lambda r: ms(r.load_ms),
        "peak resident": lambda r: size(r.peak_rss),
        "calls": lambda r: f"{r.samples:,}",
    }
    cells = {name: [get(row) for row in table.rows] for name, get in columns.items()}
    filled = {name: [c or "–" for c in found] for name, found in cells.items() if any(found)}
    return Grid(
        "Time of a call of L tokens for each of B streams, with a full memory of M tokens",
        tuple(filled),
        tuple(zip(*filled.values(), strict=True)),
    )


def _ratio(row: Row, base: str) -> str:
    if row.ratio is None:
        return ""
    if row.backend == base:
        return "1"
    return f"{times(row.ratio.median)} ({times(row.ratio.low)} – {times(row.ratio.high)})"


def tradeoff_grid(found: Tradeoff) -> Grid:
    """What each memory length brings and costs, with the change from the length before."""
    columns = ["M"]
    for text in found.texts:
        columns += [f"{found.unit.name}, {found.names[text]}", "change"]
    if found.timed:
        columns += ["p50 per call (ms)", "change (ms)", "memory per stream"]
    rows = []
    for i, length in enumerate(found.lengths):
        before = found.lengths[i - 1] if i else None
        cells = [str(length.mem_len)]
        for text in found.texts:
            value, last = found.value(length, text), found.value(before, text) if before else None
            cells += [found.told(length, text), _change(value, last, found.unit.say)]
        if found.timed:
            cells += _time_cells(length, before)
        rows.append(tuple(cells))
    return Grid("What each memory length brings and costs", tuple(columns), tuple(rows))


def _time_cells(length: Length, before: Length | None) -> list[str]:
    if length.row is None:
        return ["–"] * 3
    last = before.row.p50_ms if before and before.row else None
    return [ms(length.row.p50_ms), _change(length.row.p50_ms, last, ms), size(length.row.memory_bytes)]


def _change(value: float | None, last: float | None, say: Callable[[float], str]) -> str:
    if value is None or last is None:
        return "–"
    return f"{'−' if value < last else '+'}{say(abs(value - last))}"


def segments_grid(report: Report) -> Grid:
    """The first, the worst and the last segments."""
    worst = max(report.segments, key=lambda s: s.measures.max_abs)
    picked = {s.index: s for s in (*report.segments[:_SHOWN], worst, *report.segments[-_SHOWN:])}
    rows = []
    for i in sorted(picked):
        s, m = picked[i], picked[i].measures
        share = max(s.memory, default=0.0)
        rows.append(
            (
                f"{s.index}{' (largest)' if s is worst else ''}",
                f"{s.start:,}",
                error(m.max_abs),
                error(m.mean_abs),
                _error(m.kl),
                _share(m.top1),
                _share(m.top5),
                error(share),
                str(s.memory.index(share)) if share else "–",
            )
        )
    shown = "all" if len(picked) == len(report.segments) else f"{len(picked)} of {len(report.segments)}"
    return Grid(f"Differences from the trained model, {shown} segments", _SEGMENT_COLUMNS, tuple(rows))


def _error(value: float | None) -> str:
    return "–" if value is None else error(value)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}" if value < 1 else "100%"
