"""What a benchmark comes to in a line, its conditions, and what a reader should doubt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from txl_export.benchmarking.columns import ms, name
from txl_export.benchmarking.table import Quality, Row, Table

# Rounds whose ratios differ by more than this factor say more about the machine than about the model.
_DISTURBED = 2.0
_BUSY = 0.5  # processes per core, beside the benchmark
_NOISE = 1.05  # of a limit


def conditions(table: Table) -> str:
    """How it was measured."""
    m = table.machine
    threads = f"{table.threads} thread{'s' if table.threads > 1 else ''}"
    heads = ", ".join(dict.fromkeys(row.head for row in table.rows))
    head = f"head {heads}, " if heads else ""
    gpu = f", {m['gpu']}" if "gpu" in m else ""
    return f"{head}{threads} each, {table.rounds} rounds in turn, {m.get('cpu', 'unknown CPU')}{gpu}"


def read_as(q: Quality) -> str:
    """How a text was scored."""
    return (
        f"{q.text}, {q.tokens:,} tokens ({q.bytes:,} bytes) as one stream in segments of {q.segment_len}, from an "
        "empty memory: the first M tokens, whose memory is not yet full, are included"
    )


def abilities(table: Table) -> str | None:
    """What the limits were computed with; None where nothing was measured."""
    found = table.machine.get("limits")
    if not found:
        return None
    read = [(p["bytes"], p["bytes_per_second"]) for p in found["read"]]
    (small, fast), (large, slow) = min(read), max(read)
    flops = max(p["flops_per_second"] for p in found["matmul"])
    return (
        f"this machine reads {fast / 1e9:.0f} GB/s from {small >> 20} MiB and {slow / 1e9:.0f} GB/s from "
        f"{large >> 20} MiB, and multiplies matrices at {flops / 1e9:.0f} GFLOP/s, with {found['threads']} "
        f"thread{'s' if found['threads'] > 1 else ''}"
    )


def notes(table: Table) -> list[str]:
    """What a reader should doubt."""
    found = (_missing(table), _busy(table.machine), _disturbed(table.rows), _beyond(table.rows))
    return [note for note in found if note] + list(table.doubts)


def _missing(table: Table) -> str | None:
    if not table.missing:
        return None
    return f"{table.missing} rows or figures are still missing: the same command goes on where it was interrupted"


def _busy(machine: Any) -> str | None:
    load, cores = machine.get("load_average", 0.0), machine.get("logical_cpus", 1)
    if load <= _BUSY * cores:
        return None
    return (
        f"the machine was busy when the benchmark began (load average {load:.1f} on {cores} "
        f"core{'s' if cores > 1 else ''}): measure again when it is quiet"
    )


def _disturbed(rows: Sequence[Row]) -> str | None:
    if not any(row.ratio and row.ratio.high > _DISTURBED * row.ratio.low for row in rows):
        return None
    return "ratios vary widely between rounds: the machine was busy, measure again when quiet"


def _beyond(rows: Sequence[Row]) -> str | None:
    beyond = [row for row in rows if (row.limit_share or 0) > _NOISE]
    if not beyond:
        return None
    most = max(beyond, key=lambda row: row.limit_share or 0)
    return (
        f"{len(beyond)} of {len(rows)} rows are faster than their limit, up to {100 * (most.limit_share or 0):.0f} % "
        f"({name(most)}, {where(most)}): something slowed the machine while the limit was measured, or what a call "
        "reads lies nearer in the caches than an array of its size; take these limits as too low"
    )


def reading(table: Table) -> str:
    """What the table comes to, in a line: the fastest backend against the base, or how time grows with M."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in table.rows:
        groups.setdefault((row.target, name(row)), []).append(row)
    if not groups:
        return "Nothing was measured."
    compared = [rows for rows in groups.values() if rows[0].backend != table.base and rows[0].ratio]
    if compared:
        return _against_base(max(compared, key=_median_ratio), table.base)
    return _growth(min(groups.values(), key=lambda rows: statistics.median(r.p50_ms for r in rows)))


def _median_ratio(rows: list[Row]) -> float:
    return statistics.median(r.ratio.median for r in rows if r.ratio)


def _against_base(rows: list[Row], base: str) -> str:
    """Least and most of the ratios, and where they are."""
    ratios = [(row.ratio.median, row) for row in rows if row.ratio]
    low, worst = min(ratios, key=lambda pair: pair[0])
    high, best = max(ratios, key=lambda pair: pair[0])
    span = f"{high:.1f} ({where(best)})"
    if len(ratios) > 1:
        span = f"{low:.1f} ({where(worst)}) to {span}"
    return f"{name(best)} is {span} times as fast as {base} per call."


def _growth(rows: list[Row]) -> str:
    """How the time per call grows from the shortest memory to the longest."""
    short, long = min(rows, key=lambda r: r.mem_len), max(rows, key=lambda r: r.mem_len)
    if short.mem_len == long.mem_len:
        return f"{name(short)} takes {ms(short.p50_ms)} ms per call ({where(short)})."
    return (
        f"{name(short)} takes {ms(short.p50_ms)} ms per call at {where(short)} and {ms(long.p50_ms)} ms "
        f"at {where(long)}."
    )


def where(row: Row) -> str:
    """The row's lengths."""
    return f"M = {row.mem_len}, L = {row.segment_len}, B = {row.batch_size}"
