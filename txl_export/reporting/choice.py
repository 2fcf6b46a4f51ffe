"""Which figures of a benchmark a picture shows."""

from __future__ import annotations

import math

from txl_export.benchmarking.table import Quality, Row, Table


def latency_rows(table: Table, batch_size: int | None = None) -> list[Row]:
    """The rows that `latency` shows."""
    fewest = min((row.batch_size for row in table.rows), default=0)
    return [row for row in table.rows if row.batch_size == (fewest if batch_size is None else batch_size)]


def throughput_rows(table: Table, mem_len: int | None = None) -> list[Row]:
    """The rows that `throughput` shows."""
    streams: dict[int, set[int]] = {}
    for row in table.rows:
        streams.setdefault(row.mem_len, set()).add(row.batch_size)
    fit = [m for m, found in streams.items() if len(found) > 1 and mem_len in (None, m)]
    return [row for row in table.rows if fit and row.mem_len == max(fit)]


def quality_shown(table: Table) -> list[Quality]:
    """The figures that `quality` shows: of texts that were read at more than one M, with a perplexity to show."""
    readable = [q for q in table.quality if math.isfinite(q.perplexity)]
    lengths: dict[tuple[str, str, int], set[int]] = {}
    for q in readable:
        lengths.setdefault((q.target, q.text, q.segment_len), set()).add(q.mem_len)
    return [q for q in readable if len(lengths[q.target, q.text, q.segment_len]) > 1]


def fastest_rows(table: Table, target: str | None = None) -> list[Row]:
    """The rows that a deployer would look at: fewest streams, shortest segments, the fastest backend of each model.

    Args:
        table: a benchmark.
        target: one model; None for all.
    """
    rows = [row for row in table.rows if target in (None, row.target)]
    fewest = min((row.batch_size for row in rows), default=0)
    rows = [row for row in rows if row.batch_size == fewest]
    shortest = min((row.segment_len for row in rows), default=0)
    rows = [row for row in rows if row.segment_len == shortest]
    chosen: list[Row] = []
    for name in dict.fromkeys(row.target for row in rows):
        groups: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            if row.target == name:
                groups.setdefault((row.backend, row.layout, row.head, row.threads), []).append(row)
        best = min(groups.values(), key=_preference)
        chosen += best
    return sorted(chosen, key=lambda row: (row.target, row.mem_len))


def _preference(rows: list[Row]) -> tuple[int, float]:
    """What was measured at more lengths says more; then the faster."""
    return -len(rows), max(row.p50_ms for row in rows)
