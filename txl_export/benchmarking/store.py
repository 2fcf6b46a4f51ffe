"""What is already measured: a table that grows, and its file, whole after every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from txl_export.benchmarking.limits import Limits
from txl_export.benchmarking.table import Cell, Quality, Row, Table
from txl_export.errors import InputError
from txl_export.files import read_json, write_json

QualityKey = tuple[str, int, int, str]  # target, M, tokens per segment, name of the text


class Store:
    """Rows and figures of quality as they come; with a file, what is in it is never measured again."""

    def __init__(self, blank: Table, path: Path | None = None, restart: bool = False) -> None:
        """Start with what the file holds.

        Args:
            blank: the conditions of this run, with neither rows nor figures.
            path: the file to keep; None to keep nothing.
            restart: measure everything again, whatever the file holds.

        Raises:
            InputError: the file is something else, or was measured under other conditions.
        """
        self._table, self.path = blank, path
        self._cells: tuple[Cell, ...] = ()
        self._qualities: tuple[QualityKey, ...] = ()
        if path is not None and path.exists() and not restart:
            self._table = _take_up(path, blank)
        self._rows = {row.cell: row for row in self._table.rows}
        self._quality = {quality_key(q): q for q in self._table.quality}

    def expect(self, cells: Iterable[Cell] = (), qualities: Iterable[QualityKey] = ()) -> None:
        """Tell what there will be, in its order; what the file holds beside stays behind it."""
        self._cells += tuple(cells)
        self._qualities += tuple(qualities)

    def has(self, cells: Sequence[Cell]) -> bool:
        """Whether all of these cells are measured."""
        return all(cell in self._rows for cell in cells)

    def has_quality(self, key: QualityKey) -> bool:
        """Whether this figure is there."""
        return key in self._quality

    def add(self, rows: Iterable[Row]) -> None:
        """Keep the rows of a comparison."""
        self._rows |= {row.cell: row for row in rows}
        self.save()

    def add_quality(self, quality: Quality) -> None:
        """Keep a figure of quality."""
        self._quality[quality_key(quality)] = quality
        self.save()

    def note(self, **facts: Any) -> None:
        """Keep facts about the machine."""
        self._table = dataclasses.replace(self._table, machine={**self._table.machine, **facts})

    @property
    def load_average(self) -> float:
        """Of the machine when it was measured, the highest."""
        return float(self._table.machine.get("load_average", 0.0))

    @property
    def limits(self) -> Limits | None:
        """What the machine can do at most; None until `note` was given it, as `limits`."""
        found = self._table.machine.get("limits")
        return None if found is None else Limits.from_dict(found)

    def save(self) -> None:
        """Write the file, atomically."""
        if self.path is not None:
            write_json(self.path, self.table.to_dict())

    @property
    def table(self) -> Table:
        """What is there now."""
        rows, quality = _ordered(self._rows, self._cells), _ordered(self._quality, self._qualities)
        missing = [k for k in self._cells if k not in self._rows] + [
            k for k in self._qualities if k not in self._quality
        ]
        return dataclasses.replace(self._table, rows=rows, quality=quality, missing=len(missing))


def quality_key(q: Quality) -> QualityKey:
    """What a figure of quality is of."""
    return q.target, q.mem_len, q.segment_len, q.text


def _ordered(found: dict[Any, Any], order: Sequence[Any]) -> tuple[Any, ...]:
    keys = [k for k in dict.fromkeys(order) if k in found]
    wanted = set(keys)
    return tuple(found[k] for k in [*keys, *(k for k in found if k not in wanted)])


def _take_up(path: Path, blank: Table) -> Table:
    """The table in a file, with this run's command line; raises InputError where conditions differ."""
    try:
        found = Table.from_dict(read_json(path, InputError))
    except InputError as e:
        said = str(e).removeprefix(f"{path} ")
        raise InputError(f"{path}: {said}; to write over it add --restart") from None
    for name, get in _CONDITIONS.items():
        was, now = get(found), get(blank)
        if was != now:
            raise _other(path, name, was, now)
    for name in found.targets.keys() & blank.targets.keys():
        if found.targets[name] != blank.targets[name]:
            raise _other(path, name, found.targets[name][:12], blank.targets[name][:12])
    targets = {**found.targets, **blank.targets}
    doubts = tuple(dict.fromkeys([*found.doubts, *blank.doubts]))
    return dataclasses.replace(found, targets=targets, command=blank.command, doubts=doubts)


def _other(path: Path, what: str, was: object, now: object) -> InputError:
    return InputError(
        f"{path} was measured with {what} {was}, now it is {now}: figures of the two cannot stand in one table, "
        "choose another --output or add --restart"
    )


def _versions(table: Table) -> str:
    return ", ".join(f"{k} {v}" for k, v in sorted(table.machine.get("versions", {}).items()))


# What must be equal for figures to stand in one table.
_CONDITIONS: dict[str, Callable[[Table], object]] = {
    "cpu": lambda t: t.machine.get("cpu"),
    "cores": lambda t: t.machine.get("cores"),
    "system": lambda t: t.machine.get("system"),
    "GPU": lambda t: t.machine.get("gpu", "none"),
    "versions": _versions,
    "threads": lambda t: t.threads,
    "rounds": lambda t: t.rounds,
    "base": lambda t: t.base,
}
