"""What is shown of a row: every column's title with its unit, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from txl_export.benchmarking.table import EAGER, Quality, Row, Table


class Column(NamedTuple):
    """A column of a table for people.

    Attributes:
        title: with the unit; {base} stands for the backend that ratios are taken against.
        cell: a row's text; None where it has none.
    """

    title: str
    cell: Callable[[Row], str | None]

    def text(self, row: Row) -> str:
        """The row's text, or a dash."""
        return self.cell(row) or "-"


def name(row: Row) -> str:
    """Backend and layout; eager has one layout only."""
    return row.backend if row.backend == EAGER else f"{row.backend} {row.layout}"


def ms(t: float) -> str:
    """Milliseconds in three digits or so."""
    return f"{t:.3f}" if t < 1 else f"{t:.2f}" if t < 100 else f"{t:.0f}"


def _megabytes(n: int) -> str:
    return f"{n / 1e6:.3g}" if n < 1e9 else f"{n / 1e6:.0f}"


def _ratio(row: Row) -> str | None:
    """The ratio and, where there is one, its spread; the base is 1."""
    if row.ratio is None:
        return None
    if tuple(row.ratio) == (1.0, 1.0, 1.0):
        return "1"
    return f"{row.ratio.median:.2f} ({row.ratio.low:.2f}–{row.ratio.high:.2f})"


def _share(row: Row) -> str | None:
    share = row.limit_share
    return None if share is None else f"{100 * share:.0f} %"


# One line per column.
COLUMNS: Mapping[str, Column] = {
    "backend": Column("backend", name),
    "M": Column("M", lambda r: str(r.mem_len)),
    "L": Column("L", lambda r: str(r.segment_len)),
    "B": Column("B", lambda r: str(r.batch_size)),
    "p50": Column("p50 ms", lambda r: ms(r.p50_ms)),
    "p90": Column("p90 ms", lambda r: ms(r.p90_ms)),
    "p99": Column("p99 ms", lambda r: ms(r.p99_ms)),
    "mean": Column("mean ms", lambda r: ms(r.mean_ms)),
    "spread": Column("p50 of rounds, ms", lambda r: "–".join(map(ms, r.spread_ms))),
    "tokens": Column("tokens/s", lambda r: f"{r.tokens_per_second:,.0f}"),
    "ratio": Column("× {base}", _ratio),
    "limit": Column("limit ms", lambda r: ms(r.limit.ms) if r.limit else None),
    "bound": Column("bound by", lambda r: r.limit.bound if r.limit else None),
    "share": Column("of limit", _share),
    "memory": Column("MB/stream", lambda r: _megabytes(r.memory_bytes)),
    "rss": Column("RSS MB", lambda r: f"{r.peak_rss / 1e6:.0f}"),
    "load": Column("load s", lambda r: f"{r.load_ms / 1000:.2f}"),
    "first": Column("first s", lambda r: f"{r.first_ms / 1000:.2f}"),
}
TERMINAL = ("backend", "M", "L", "B", "p50", "p99", "tokens", "ratio", "share", "memory", "rss", "first")
# Said once below a table, of the columns that do not explain themselves.
LEGEND = (
    "ratio: the base's time over this one's, median of the rounds (lowest–highest); of limit: the least time that "
    "reading and multiplying take here, over p50; MB/stream: memory of M tokens; RSS: the process's largest memory; "
    "first: from the start of a process to its first answer"
)

QUALITY_TITLES = ("M", "bits per byte", "nats per token", "perplexity per token")


def quality_cells(q: Quality) -> tuple[str, ...]:
    """Texts below `QUALITY_TITLES`."""
    return str(q.mem_len), f"{q.bits_per_byte:.4f}", f"{q.nats:.4f}", f"{q.perplexity:.4g}"


def columns(table: Table, names: tuple[str, ...]) -> list[Column]:
    """Columns by name, without those that no row fills."""
    chosen = [COLUMNS[n] for n in names if any(COLUMNS[n].cell(row) for row in table.rows)]
    return [c._replace(title=c.title.format(base=table.base)) for c in chosen]
