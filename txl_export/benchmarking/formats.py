"""A benchmark for spreadsheets (CSV) and for pages (Markdown)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from txl_export.benchmarking.columns import COLUMNS, LEGEND, QUALITY_TITLES, columns, quality_cells
from txl_export.benchmarking.notes import abilities, conditions, notes, read_as, reading
from txl_export.benchmarking.table import Quality, Row, Table

_CELL = ("target", "backend", "layout", "mem_len", "segment_len", "batch_size", "threads", "head", "filled", "samples")
_TIMES = ("p50_ms", "p90_ms", "p99_ms", "mean_ms")

_Value = Callable[[Row], object]


def _attribute(name: str) -> _Value:
    return lambda row: getattr(row, name)


# One line per column of the CSV; times in ms, sizes in bytes, rates per second, shares of 1.
_CSV: Mapping[str, _Value] = {
    **{name: _attribute(name) for name in (*_CELL, *_TIMES)},
    "p50_lowest_round_ms": lambda r: r.spread_ms[0],
    "p50_highest_round_ms": lambda r: r.spread_ms[1],
    "tokens_per_second": _attribute("tokens_per_second"),
    "ratio": lambda r: r.ratio and r.ratio.median,
    "ratio_lowest_round": lambda r: r.ratio and r.ratio.low,
    "ratio_highest_round": lambda r: r.ratio and r.ratio.high,
    "limit_ms": lambda r: r.limit and r.limit.ms,
    "limit_bound": lambda r: r.limit and r.limit.bound,
    "limit_share": _attribute("limit_share"),
    "limit_bytes": lambda r: r.limit and r.limit.bytes,
    "limit_flops": lambda r: r.limit and r.limit.flops,
    "limit_bytes_per_second": lambda r: r.limit and r.limit.bandwidth,
    "limit_flops_per_second": lambda r: r.limit and r.limit.flop_rate,
    "load_ms": _attribute("load_ms"),
    "first_ms": _attribute("first_ms"),
    "peak_rss_bytes": _attribute("peak_rss"),
    "memory_bytes_per_stream": _attribute("memory_bytes"),
}
_QUALITY = ("text", "nats", "perplexity", "bits_per_byte")


def to_csv(table: Table) -> str:
    """All rows with a line of names above, numbers in full; what M is worth stands in each row of that M."""
    worth = {(q.target, q.mem_len): q for q in reversed(table.quality)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_CSV, *_QUALITY])
    for row in table.rows:
        q = worth.get((row.target, row.mem_len))
        writer.writerow([*(value(row) for value in _CSV.values()), *(getattr(q, n) if q else None for n in _QUALITY)])
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """Tables as GitHub shows them, with the conditions and the command that they come from."""
    parts = [
        f"Milliseconds per call of L tokens and B streams with a memory of M tokens: {_escape(conditions(table))}."
    ]
    if table.command:
        fence = "`" * max(3, table.command.count("`") + 1)  # longer than any run of backticks inside
        parts.append(f"{fence}sh\n{table.command}\n{fence}")
    for target in dict.fromkeys([*(r.target for r in table.rows), *(q.target for q in table.quality)]):
        parts.append(f"**{_escape(target)}**")
        parts += _row_table(table, [r for r in table.rows if r.target == target])
        parts += _quality_table([q for q in table.quality if q.target == target])
    can = abilities(table)
    parts += [_escape(reading(table)), _escape(_sentence(LEGEND)), *([_escape(_sentence(can))] if can else [])]
    versions = ", ".join(f"{k} {v}" for k, v in table.machine.get("versions", {}).items())
    parts += [_escape(f"Versions: {versions}.")] if versions else []
    parts += [f"Note: {_escape(note)}." for note in notes(table)]
    return "\n\n".join(parts) + "\n"


def _row_table(table: Table, rows: Sequence[Row]) -> list[str]:
    shown = columns(table, tuple(COLUMNS))
    return [_grid([c.title for c in shown], ([c.text(row) for c in shown] for row in rows), left=1)] if rows else []


def _quality_table(found: Sequence[Quality]) -> list[str]:
    if not found:
        return []
    cells = [quality_cells(q) for q in found]
    return [f"{_escape(read_as(found[0]))}:", _grid(QUALITY_TITLES, cells, left=0)]


def _grid(titles: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    rules = [":---" if i < left else "---:" for i in range(len(titles))]
    lines = [[_escape(t) for t in titles], rules, *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _escape(text: str) -> str:
    """Text as text: nothing in a name becomes markup, a link or another column."""
    text = " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())
    return "".join(f"\\{c}" if c in "\\`*_[]|~#" else c for c in text)
