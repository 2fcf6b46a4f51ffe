"""What each memory length brings and costs, out of one benchmark and for one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txl_export.benchmarking.table import Quality, Row, Table
from txl_export.reporting.choice import fastest_rows
from txl_export.reporting.series import Unit, quality_unit
from txl_export.reporting.words import short_paths


@dataclass(frozen=True)
class Length:
    """One memory length.

    Attributes:
        mem_len: M in tokens.
        row: time of a call; None where it was not measured.
        quality: by text; texts that were not read at this length are missing.
    """

    mem_len: int
    row: Row | None
    quality: dict[str, Quality]


@dataclass(frozen=True)
class Tradeoff:
    """All lengths of one model, rising.

    Attributes:
        target: the model, as the benchmark names it.
        unit: of quality; less is better.
        texts: as the benchmark names them, in the order in which they were read.
        lengths: what was measured.
    """

    target: str
    unit: Unit
    texts: tuple[str, ...]
    lengths: tuple[Length, ...]

    @property
    def names(self) -> dict[str, str]:
        """A short name for each text."""
        return short_paths(self.texts, 32)

    def at(self, mem_len: int) -> Length | None:
        """What is known of a length."""
        return next((n for n in self.lengths if n.mem_len == mem_len), None)

    @property
    def timed(self) -> list[Length]:
        """The lengths whose calls were timed."""
        return [n for n in self.lengths if n.row]

    def read(self, text: str) -> list[Length]:
        """The lengths at which a text was read."""
        return [n for n in self.lengths if text in n.quality]

    def value(self, length: Length, text: str) -> float | None:
        """The quality of a text at a length, in `unit`."""
        return self.unit.value(length.quality[text]) if text in length.quality else None

    def told(self, length: Length, text: str) -> str:
        """That value in words; a dash where the text was not read."""
        value = self.value(length, text)
        return "–" if value is None else self.unit.say(value)


def tradeoff(table: Table, own: Path) -> Tradeoff:
    """The trade-off of the bundle at `own`; where a benchmark names others only, of the first of them.

    Text is taken in the segments in which most of it was read.
    """
    targets = [row.target for row in table.rows] + [q.target for q in table.quality]
    target = next((t for t in targets if _same(t, own)), targets[0] if targets else "")
    rows = {row.mem_len: row for row in fastest_rows(table, target)}
    found = [q for q in table.quality if q.target == target]
    cuts = [q.segment_len for q in found]
    found = [q for q in found if q.segment_len == max(cuts, key=lambda n: (cuts.count(n), n))]
    texts = tuple(dict.fromkeys(q.text for q in found))
    lengths = tuple(
        Length(m, rows.get(m), {q.text: q for q in found if q.mem_len == m})
        for m in sorted({*rows, *(q.mem_len for q in found)})
    )
    return Tradeoff(target, quality_unit(found), texts, lengths)


def _same(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).resolve() == path.resolve()
