"""What a run on a GPU found, as `gpu.json` holds it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.plan import Case, model_of
from txl_export.cost import call_cost
from txl_export.errors import InputError
from txl_export.files import read_json, write_atomic

FORMAT, SCHEMA = "txl-export-gpu", 1
_DIGITS = 4


@dataclass(frozen=True)
class Timed:
    """A way to run one point of a case.

    Attributes:
        case: model, precision and M.
        way: what ran it.
        segment_len: tokens L of a call.
        batch_size: streams B.
        wall_ms: of calls from numpy to numpy, one after the other.
        device_ms: of calls on the device, between events; () where there was none.
        off: how far log-probabilities were from eager's; None where that was not compared.
    """

    case: Case
    way: str
    segment_len: int
    batch_size: int
    wall_ms: tuple[float, ...]
    device_ms: tuple[float, ...] = ()
    off: float | None = None

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What rows of different ways have in common, half and single precision being two."""
        return self.case.model, self.case.precision, self.case.mem_len, self.segment_len, self.batch_size

    def wall(self, percent: float = 50) -> float:
        """A percentile of the wall time, ms."""
        return float(np.percentile(self.wall_ms, percent))

    @property
    def mean(self) -> float:
        """Of the wall time, ms."""
        return statistics.fmean(self.wall_ms)

    @property
    def device(self) -> float | None:
        """Median time between events, ms."""
        return statistics.median(self.device_ms) if self.device_ms else None

    @property
    def tokens_per_second(self) -> float:
        """At the mean wall time."""
        return 1000 * self.segment_len * self.batch_size / self.mean

    def floor(self, bandwidth: float | None) -> float | None:
        """Milliseconds that reading what the call must read takes at least, at so many bytes per second."""
        if bandwidth is None:
            return None
        config, dialect = model_of(self.case.model)
        c, M = self.case, self.case.mem_len
        window = dialect.window(config, M)
        cost = call_cost(config, M, self.segment_len, self.batch_size, c.head, window, c.policy)
        return 1000 * cost.bytes_read / bandwidth


@dataclass(frozen=True)
class Run:
    """A run as far as it came.

    Attributes:
        about: the machine, as `txl_export.benchmarking.machine` tells it, and "gpu".
        backend: what ran the bundles.
        date: YYYY-MM-DD.
        seconds: that it took.
        clocks: what the driver said, by when: name, power and clocks; {} where nothing tells.
        bandwidth: of copies within the GPU's memory, bytes read and written per second; None where not measured.
        timed: in the order in which they were measured.
        built: engines by case: (L, bytes, seconds, types of products).
        verified: by case what `verify` found: passed, max_abs, segments, wraps.
        missing: steps that gave nothing, and why.
        dry: whether nothing here is a figure: small shapes, no GPU.
    """

    about: Mapping[str, Any]
    backend: str
    date: str
    seconds: float
    clocks: Mapping[str, str] = field(default_factory=dict)
    bandwidth: float | None = None
    timed: tuple[Timed, ...] = ()
    built: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    verified: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: tuple[tuple[str, str], ...] = ()
    dry: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, samples in few digits."""
        rows = [{**dataclasses.asdict(t), "case": t.case.to_dict()} for t in self.timed]
        for row in rows:
            row |= {name: [float(f"{x:.{_DIGITS}g}") for x in row[name]] for name in ("wall_ms", "device_ms")}
        rest = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"format": FORMAT, "schema": SCHEMA, **rest, "timed": rows, "missing": [list(m) for m in self.missing]}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Run:
        """Take back what `to_dict` gave; raises KeyError or TypeError."""
        rest = {k: v for k, v in value.items() if k not in ("format", "schema", "timed", "missing")}
        return cls(**rest, timed=tuple(map(_timed, value["timed"])), missing=tuple((a, b) for a, b in value["missing"]))


def _timed(row: Mapping[str, Any]) -> Timed:
    samples = {name: tuple(row[name]) for name in ("wall_ms", "device_ms")}
    return Timed(**{**row, **samples, "case": Case.from_dict(row["case"])})


def read(path: Path) -> Run:
    """Read a file; raises InputError for another."""
    value = read_json(path, InputError)
    try:
        if (value["format"], value["schema"]) != (FORMAT, SCHEMA):
            raise KeyError("format")
        return Run.from_dict(value)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError(f"{path} holds no GPU benchmark of this version ({e}): move it away") from None


def write(path: Path, run: Run) -> None:
    """Write the file, a timed point per line."""
    text = json.dumps(run.to_dict(), separators=(",", ":"), allow_nan=False)
    write_atomic(path, (text.replace('{"case":', '\n{"case":') + "\n").encode())
