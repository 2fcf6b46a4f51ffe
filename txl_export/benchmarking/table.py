"""What a benchmark found: cells, their samples, and what follows from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from txl_export.errors import InputError
from txl_export.records import check_record

FORMAT = "txl-export-bench"
SCHEMA = 2
EAGER = "eager"

Rounds = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Cell:
    """What is timed.

    Attributes:
        target: the bundle or checkpoint, as it was given.
        backend: what runs it.
        layout: what its memory holds.
        mem_len: memory length M in tokens.
        segment_len: tokens L per call and stream.
        batch_size: streams B.
        threads: CPU threads.
        head: what a call returns.
    """

    target: str
    backend: str
    layout: str
    mem_len: int
    segment_len: int
    batch_size: int
    threads: int
    head: str


class Ratio(NamedTuple):
    """How many times as fast as the base: the median of the rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float


class Limit(NamedTuple):
    """The least that a call can take on the machine: its bytes must be read, its products computed.

    Attributes:
        bytes: weights, position tables and every stream's keys and values, each once.
        flops: of the matrix products of all streams.
        bandwidth: bytes per second that the machine read in the same run, of a working set of that size.
        flop_rate: FLOPs per second of its matrix product, measured in the same run.
    """

    bytes: int
    flops: int
    bandwidth: float
    flop_rate: float

    @property
    def ms(self) -> float:
        """Milliseconds: the longer of reading and computing."""
        return 1000 * max(self.bytes / self.bandwidth, self.flops / self.flop_rate)

    @property
    def bound(self) -> str:
        """What limits: "reading" or "arithmetic"."""
        return "reading" if self.bytes / self.bandwidth >= self.flops / self.flop_rate else "arithmetic"


class Quality(NamedTuple):
    """What a memory length is worth on a text.

    Attributes:
        target: the bundle or checkpoint, as it was given.
        mem_len: memory length M in tokens.
        segment_len: tokens per segment.
        text: name of the text.
        tokens: scored.
        nats: mean negative log-probability per token.
        bytes: of the text behind those tokens.
    """

    target: str
    mem_len: int
    segment_len: int
    text: str
    tokens: int
    nats: float
    bytes: int

    @property
    def perplexity(self) -> float:
        """The exponential of the nats per token."""
        return math.exp(self.nats) if self.nats < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text."""
        return self.nats * self.tokens / self.bytes / math.log(2)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict, with what follows from the figures."""
        return {**self._asdict(), "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


@dataclass(frozen=True)
class Row(Cell):
    """A cell and what was measured.

    Attributes:
        filled: tokens that the memory held when timing began, at most M.
        load_ms: milliseconds to import the backend, load the model and open a session, in a fresh process.
        first_ms: milliseconds from the start of a fresh process to its first answer, for L tokens per stream
            (time to first token, cold).
        peak_rss: largest resident memory of the process, bytes.
        memory_bytes: bytes of memory per stream.
        rounds_ms: per round the milliseconds of every call.
        ratio: the base's time over this one's, 2.0 is twice as fast; None where the base was not run.
        limit: the least that the call can take here; None where it was not measured.
    """

    filled: int
    load_ms: float
    first_ms: float
    peak_rss: int
    memory_bytes: int
    rounds_ms: tuple[tuple[float, ...], ...]
    ratio: Ratio | None
    limit: Limit | None

    @property
    def cell(self) -> Cell:
        """What was timed, without what was measured."""
        return Cell(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Cell)})

    @property
    def limit_share(self) -> float | None:
        """The limit over the median call: 1.0 is as fast as the machine can."""
        return None if self.limit is None else self.limit.ms / self.p50_ms

    @property
    def samples(self) -> int:
        """Number of timed calls."""
        return sum(map(len, self.rounds_ms))

    @property
    def p50_ms(self) -> float:
        """Median milliseconds per call."""
        return self._percentile(50)

    @property
    def p90_ms(self) -> float:
        """Milliseconds that nine in ten calls stay below."""
        return self._percentile(90)

    @property
    def p99_ms(self) -> float:
        """Milliseconds that 99 in 100 calls stay below; near the largest where there are few samples."""
        return self._percentile(99)

    @property
    def mean_ms(self) -> float:
        """Mean milliseconds per call."""
        return float(np.mean(self._all()))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all streams in a second of calls."""
        return 1000 * self.batch_size * self.segment_len / self.mean_ms

    def _all(self) -> np.ndarray:
        return np.concatenate([np.asarray(r, dtype=np.float64) for r in self.rounds_ms])

    def _percentile(self, q: float) -> float:
        return float(np.percentile(self._all(), q))

    @property
    def spread_ms(self) -> tuple[float, float]:
        """The lowest and the highest of the rounds' medians, milliseconds."""
        medians = [float(np.median(r)) for r in self.rounds_ms]
        return min(medians), max(medians)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict: the cell, the figures and the raw samples in ms."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        figures = ("samples", "p50_ms", "p90_ms", "p99_ms", "mean_ms", "spread_ms", "tokens_per_second", "limit_share")
        limit = self.limit
        return {
            **given,
            **{name: getattr(self, name) for name in figures},
            "ratio": None if self.ratio is None else self.ratio._asdict(),
            "limit": None if limit is None else {**limit._asdict(), "ms": limit.ms, "bound": limit.bound},
            "rounds_ms": [list(r) for r in self.rounds_ms],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Row:
        """Take back what `to_dict` gave; the figures are computed again from the samples."""
        given = {f.name: value[f.name] for f in dataclasses.fields(cls)}
        given["rounds_ms"] = tuple(tuple(float(ms) for ms in r) for r in given["rounds_ms"])
        for name, kind in (("ratio", Ratio), ("limit", Limit)):
            given[name] = _tuple_from(kind, given[name])
        return cls(**given)


def _tuple_from(kind: Any, value: Mapping[str, Any] | None) -> Any:
    """A named tuple of a dict that may hold derived figures too."""
    return None if value is None else kind(**{name: value[name] for name in kind._fields})


@dataclass(frozen=True)
class Table:
    """All rows of a benchmark, and the conditions that they were measured under.

    Attributes:
        rows: in the order of target, M, L, B; within a comparison in the order of the backends.
        machine: see `txl_export.benchmarking.machine.describe`.
        threads: CPU threads that every cell had.
        rounds: turns that every cell had.
        quality: what each memory length is worth on a text; empty where no text was given.
        base: the backend that ratios are taken against.
        targets: by name, what tells a target's content from another's under the same name.
        command: the command line that measures the same.
        missing: rows and figures of quality that are still to be measured, of a run that was interrupted.
        doubts: what the texts tell of the vocabularies that read them, a line each.
    """

    rows: tuple[Row, ...]
    machine: Mapping[str, Any]
    threads: int
    rounds: int
    quality: tuple[Quality, ...] = ()
    base: str = EAGER
    targets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: str = ""
    missing: int = 0
    doubts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict, raw samples included."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "command": self.command,
            "missing": self.missing,
            "machine": {**self.machine, "threads": self.threads},
            "targets": dict(self.targets),
            "rounds": self.rounds,
            "base": self.base,
            "doubts": list(self.doubts),
            "quality": [q.to_dict() for q in self.quality],
            "rows": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, value: Any) -> Table:
        """Take back what `to_dict` gave.

        Raises:
            InputError: something else, or of another version.
        """
        if not isinstance(value, Mapping) or (value.get("format"), value.get("schema")) != (FORMAT, SCHEMA):
            raise InputError(f"this is no benchmark of this version: expected format {FORMAT!r}, schema {SCHEMA}")
        try:
            machine = dict(value["machine"])
            table = cls(
                rows=tuple(Row.from_dict(row) for row in value["rows"]),
                threads=machine.pop("threads"),
                machine=machine,
                quality=tuple(_tuple_from(Quality, q) for q in value["quality"]),
                doubts=tuple(value.get("doubts", ())),
                **{name: value[name] for name in ("rounds", "base", "targets", "command", "missing")},
            )
            table.check()
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
            raise InputError(f"this benchmark is damaged ({type(e).__name__}: {e}): run it again") from None
        return table

    def check(self) -> None:
        """Raise ValueError where a field holds what cannot have been measured."""
        check_record(self)
        for row in self.rows:
            _require(min(row.mem_len, row.batch_size - 1, row.segment_len - 1) >= 0, "a row's lengths")
            _require(bool(row.rounds_ms) and all(row.rounds_ms), "a row without samples")
            _require(all(0 < ms < math.inf for r in row.rounds_ms for ms in r), "a row's samples")
            figures = (row.filled, row.load_ms, row.first_ms, row.peak_rss, row.memory_bytes)
            _require(all(0 <= x < math.inf for x in figures), "a row's figures")
            parts = (*(row.ratio or ()), *(row.limit or ()))
            _require(all(0 < x < math.inf for x in parts), "a row's ratio or limit")
        for q in self.quality:
            _require(min(q.tokens, q.bytes, q.segment_len) > 0 and q.mem_len >= 0, "counts of a figure of quality")
            _require(0 <= q.nats < math.inf, "nats of a figure of quality")


def _require(possible: bool, what: str) -> None:
    if not possible:
        raise ValueError(f"{what}: nothing measures such numbers")


class Facts(NamedTuple):
    """What a worker tells of a cell beside its samples; see `Row`."""

    filled: int
    load_ms: float
    first_ms: float
    memory_bytes: int
    peak_rss: int
    limit: Limit | None = None


def make_rows(measured: Mapping[Cell, Rounds], facts: Mapping[Cell, Facts], base: str = EAGER) -> list[Row]:
    """Rows of one comparison, each set against its base where there is one.

    Args:
        measured: per cell and round the milliseconds of every call; round i of all cells ran in turn.
        facts: what else is known of each cell.
        base: the backend that the others are set against.
    """
    reference = next((rounds for cell, rounds in measured.items() if cell.backend == base), None)
    return [
        Row(
            **dataclasses.asdict(cell),
            **facts[cell]._asdict(),
            rounds_ms=tuple(tuple(r) for r in rounds),
            ratio=None if reference is None else compare(rounds, reference),
        )
        for cell, rounds in measured.items()
    ]


def compare(own: Rounds, base: Rounds) -> Ratio:
    """How many times as fast `own` is as `base`.

    Rounds are set against each other pairwise, since they ran one after the other: what slows the machine
    down for a while slows both.
    """
    ratios = [float(np.median(b) / np.median(o)) for o, b in zip(own, base, strict=True)]
    return Ratio(float(np.median(ratios)), min(ratios), max(ratios))
