"""What figures come to, in sentences: nothing here that they do not say."""

from __future__ import annotations

import itertools
import math

from txl_export.benchmarking.table import Row
from txl_export.reporting.tradeoff import Length, Tradeoff
from txl_export.reporting.words import error, listed, ms, size, times
from txl_export.verification.report import Report


def verified(report: Report) -> str:
    """Whether the bundle gives the trained model's numbers."""
    n = len(report.segments)
    over = f"over {n} segment{'s' if n != 1 else ''} of {_tokens(report.segment_len)} ({report.source})"
    if not report.passed:
        return f"The bundle does not give the trained model's numbers: {report.failure} ({over})."
    limit = report.limits.log_probs
    within = f", tolerance {error(limit)}" if limit else ""
    return (
        f"The bundle gives the trained model's numbers: {over} the largest difference is "
        f"{error(report.max_abs)}{_unit(report)}{within}; {_drift(report)}."
    )


def _unit(report: Report) -> str:
    return "" if report.head.startswith("features") else " nats"


def _drift(report: Report) -> str:
    if report.trend.drifts is None:
        return "the run is too short to tell whether errors grow"
    return "errors grow with the number of segments" if report.trend.drifts else "errors do not grow"


def fast(row: Row, base: str) -> str:
    """How long a call takes, against the base of comparison and against the machine's limit."""
    took = f"{ms(row.p50_ms)} ms on {_name(row)} (p99 {ms(row.p99_ms)} ms)"
    text = f"At M = {row.mem_len} a call of {_call(row)} takes {took}"
    if row.ratio and row.backend != base:
        spread = f"{times(row.ratio.low)} to {times(row.ratio.high)} from round to round"
        text += f", {times(row.ratio.median)} times as fast as {base} ({spread})"
    text += "."
    if row.limit and row.limit_share:
        text += f" The machine's limit is {ms(row.limit.ms)} ms ({row.limit.bound}):"
        text += f" the call runs at {row.limit_share:.0%} of it."
    return text


def _call(row: Row) -> str:
    return _tokens(row.segment_len) + (f" for each of {row.batch_size} streams" if row.batch_size > 1 else "")


def _tokens(n: int) -> str:
    return "1 token" if n == 1 else f"{n} tokens"


def _name(row: Row) -> str:
    return row.backend if row.layout in ("hidden", row.backend) else f"{row.backend} {row.layout}"


def steps(found: Tradeoff, own: int) -> list[str]:
    """The step of memory that ends at the bundle's M, the one that begins there, and where the text is read best."""
    text = found.texts[0] if found.texts else None
    if text is None or len(found.read(text)) < 2:
        return _growth(found)
    lengths = found.read(text)
    pairs = list(itertools.pairwise(lengths))
    near = [pair for pair in pairs if own in (pair[0].mem_len, pair[1].mem_len)] or pairs[-1:]
    on = f" on {found.names[text]}" if len(found.texts) > 1 else ""
    told = [_step(found, text, on, *pair) for pair in near]
    best = min(lengths, key=lambda n: (found.value(n, text) or math.inf, n.mem_len))
    if best is not lengths[-1]:
        value = found.told(best, text)
        told.append(
            f"Of the lengths measured, M = {best.mem_len} reads the text best{on} ({value} {found.unit.name}): "
            f"longer memory, up to {lengths[-1].mem_len}, does not help."
        )
    return told


def _step(found: Tradeoff, text: str, on: str, a: Length, b: Length) -> str:
    before, after = found.value(a, text), found.value(b, text)
    assert before is not None and after is not None
    least = 0.5 * 10**-found.unit.digits
    change = before - after
    amount = f"{found.unit.say(abs(change))} {found.unit.name}"
    worth = f"saves {amount}" if change > least else f"loses {amount}" if change < -least else "leaves quality as it is"
    first = f"Going from M = {a.mem_len} to {b.mem_len} {worth}{on}"
    cost = _cost(a.row, b.row)
    return f"{first}; it {cost}." if cost else f"{first}."


def _cost(a: Row | None, b: Row | None) -> str:
    """What the longer memory takes more of time and of bytes."""
    if a is None or b is None or (a.backend, a.layout) != (b.backend, b.layout):
        return ""
    more = b.p50_ms - a.p50_ms
    overlap = a.spread_ms[1] >= b.spread_ms[0]
    spread = " (within the spread of the rounds)" if overlap else ""
    time = f"{ms(more)} ms per call of {_call(b)}{spread}" if more > 0 else ""
    room = b.memory_bytes - a.memory_bytes
    costs = [cost for cost in (time, f"{size(room)} of memory per stream" if room > 0 else "") if cost]
    return f"costs {listed(costs)}" if costs else "costs nothing measurable"


def _growth(found: Tradeoff) -> list[str]:
    """How time grows, where quality is not known."""
    timed = found.timed
    if len(timed) < 2:
        return []
    short, long = timed[0].row, timed[-1].row
    assert short and long
    return [
        f"From M = {short.mem_len} to {long.mem_len} a call of {_call(long)} on {_name(long)} goes from "
        f"{ms(short.p50_ms)} to {ms(long.p50_ms)} ms."
    ]
