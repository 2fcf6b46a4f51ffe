"""What `results.json` holds: one section per matrix, each a table with its conditions and what it lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.matrix import Point
from txl_export.benchmarking.table import Table
from txl_export.errors import InputError
from txl_export.files import read_json, write_atomic

FORMAT, SCHEMA = "txl-export-peers", 1
_DIGITS = 4  # of a sample in the file


class Gap(NamedTuple):
    """Peers that a point lacks, and why."""

    point: Point
    peers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Section:
    """A matrix as far as it is measured.

    Attributes:
        table: rows of finished comparisons and their conditions.
        date: of the last of them, as YYYY-MM-DD.
        minutes: the time that a run was given.
        skipped: what does not fit the machine's memory or the time.
        failed: what ended with an error.
        left: comparisons that are still to be measured.
    """

    table: Table
    date: str
    minutes: float
    skipped: tuple[Gap, ...] = ()
    failed: tuple[Gap, ...] = ()
    left: tuple[Point, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict, samples in few digits."""
        return {
            "date": self.date,
            "minutes": self.minutes,
            "skipped": [_from_gap(gap) for gap in self.skipped],
            "failed": [_from_gap(gap) for gap in self.failed],
            "left": [list(point) for point in self.left],
            "table": _rounded(self.table.to_dict()),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Section:
        """Take back what `to_dict` gave; raises InputError, KeyError or TypeError."""
        return cls(
            Table.from_dict(value["table"]),
            value["date"],
            value["minutes"],
            tuple(map(_to_gap, value["skipped"])),
            tuple(map(_to_gap, value["failed"])),
            tuple(Point(*point) for point in value["left"]),
        )


def _from_gap(gap: Gap) -> dict[str, Any]:
    return {"point": list(gap.point), "peers": list(gap.peers), "reason": gap.reason}


def _to_gap(value: Mapping[str, Any]) -> Gap:
    return Gap(Point(*value["point"]), tuple(value["peers"]), value["reason"])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def read_sections(path: Path) -> dict[str, Section]:
    """The sections of a file by name; none where there is no file. Raises InputError for another file."""
    if not path.exists():
        return {}
    value = read_json(path, InputError)
    try:
        if (value["format"], value["schema"]) != (FORMAT, SCHEMA):
            raise KeyError("format")
        return {name: Section.from_dict(section) for name, section in value["sections"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as e:
        raise InputError(f"{path} holds no peers' benchmark of this version ({e}): move it away") from None


def write_sections(path: Path, sections: Mapping[str, Section]) -> None:
    """Write the file, a row of a table per line."""
    held = {name: section.to_dict() for name, section in sections.items()}
    text = json.dumps({"format": FORMAT, "schema": SCHEMA, "sections": held}, separators=(",", ":"), allow_nan=False)
    write_atomic(path, (text.replace('{"target":', '\n{"target":') + "\n").encode())
