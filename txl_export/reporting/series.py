"""Lines of a picture, out of the rows of a benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from txl_export.benchmarking.table import Quality, Row
from txl_export.reporting.style import LONGEST_LABEL
from txl_export.reporting.words import error, short_names, short_paths


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
        x: a memory length in tokens, or a number of streams.
        y: the value.
        low: lowest of the rounds; `y` where there are none.
        high: highest of them.
        p99: value that 99 in 100 calls stay below; None where it is not asked for.
        limit: the least that the machine allows; None where unknown.
    """

    x: int
    y: float
    low: float
    high: float
    p99: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Line:
    """Measurements under one name, by rising x."""

    label: str
    points: tuple[Point, ...]

    @property
    def xs(self) -> list[int]:
        """Where it was measured."""
        return [p.x for p in self.points]

    @property
    def ys(self) -> list[float]:
        """What was measured there."""
        return [p.y for p in self.points]


Labels = Callable[[Row], str]

_VARYING = {"head": "{}", "threads": "{} threads"}


def row_labels(rows: Sequence[Row], most: int = LONGEST_LABEL) -> Labels:
    """A function that names the line of a row: its backend, and what else tells the lines apart.

    Args:
        rows: all rows that any picture of a set will show, so that a line keeps its name in each.
        most: characters of a name.
    """
    layouts: dict[str, set[str]] = {}
    for row in rows:
        layouts.setdefault(row.backend, set()).add(row.layout)
    several = len({row.target for row in rows}) > 1
    vary = [name for name in _VARYING if len({getattr(row, name) for row in rows}) > 1]

    def full(row: Row) -> str:
        plain = len(layouts[row.backend]) == 1 and row.layout in ("hidden", row.backend)
        what = row.backend if plain else f"{row.backend} {row.layout}"
        rest = [_VARYING[name].format(getattr(row, name)) for name in vary]
        return ", ".join([what, *rest])

    targets = short_paths((row.target for row in rows), 24)

    def whole(row: Row) -> str:
        return f"{targets[row.target]}: {full(row)}" if several else full(row)

    short = short_names(map(whole, rows), most)
    return lambda row: short[whole(row)]


def lines_of(rows: Iterable[Row], label: Labels, point: Callable[[Row], Point]) -> list[Line]:
    """Lines in the order of their first rows."""
    groups: dict[str, dict[int, Point]] = {}
    for row in rows:
        at = point(row)
        groups.setdefault(label(row), {})[at.x] = at
    return [Line(name, tuple(points[x] for x in sorted(points))) for name, points in groups.items()]


def latency_point(row: Row) -> Point:
    """Milliseconds per call against M."""
    limit = None if row.limit is None else row.limit.ms
    return Point(row.mem_len, row.p50_ms, *row.spread_ms, row.p99_ms, limit)


def throughput_point(row: Row) -> Point:
    """Tokens per second of all streams against B."""
    rounds = [1000 * row.batch_size * row.segment_len / statistics.fmean(r) for r in row.rounds_ms]
    return Point(row.batch_size, row.tokens_per_second, min(rounds), max(rounds))


# Beyond it a power of ten says more than digits.
_LARGE = 1e5


@dataclass(frozen=True)
class Unit:
    """How the quality of a text is told."""

    name: str
    short: str
    value: Callable[[Quality], float]
    digits: int

    def say(self, value: float) -> str:
        """A value in words; the perplexity of an untrained model may have any size."""
        return f"{value:.{self.digits}f}" if abs(value) < _LARGE else error(value)


BITS = Unit("bits per byte", "bits per byte", lambda q: q.bits_per_byte, 3)
PERPLEXITY = Unit("perplexity per token", "perplexity", lambda q: q.perplexity, 2)


def quality_unit(found: Sequence[Quality]) -> Unit:
    """Bits per byte where tokens are bytes, else perplexity, as is the custom for words."""
    return BITS if found and all(q.tokens == q.bytes for q in found) else PERPLEXITY


def quality_lines(found: Sequence[Quality], unit: Unit) -> list[Line]:
    """A line per text, and per model and segment length where there are several."""
    targets, texts = short_paths((q.target for q in found), 24), short_paths((q.text for q in found), 40)
    several, cuts = len(targets) > 1, len({q.segment_len for q in found}) > 1
    groups: dict[tuple[str, str, int], dict[int, Point]] = {}
    for q in found:
        y = unit.value(q)
        groups.setdefault((q.target, q.text, q.segment_len), {})[q.mem_len] = Point(q.mem_len, y, y, y)
    names = {
        key: (f"{targets[key[0]]}: " if several else "") + texts[key[1]] + (f", L = {key[2]}" if cuts else "")
        for key in groups
    }
    short = short_names(names.values(), LONGEST_LABEL)
    return [Line(short[names[key]], tuple(points[x] for x in sorted(points))) for key, points in groups.items()]
