"""What a report is made of."""

from __future__ import annotations

from dataclasses import dataclass

from txl_export.benchmarking.table import Row, Table
from txl_export.bundle import Bundle
from txl_export.reporting.sections import Part, accuracy_parts, memory_parts, speed_parts
from txl_export.reporting.tradeoff import Tradeoff, tradeoff
from txl_export.verification.report import Report


@dataclass(frozen=True)
class Contents:
    """What a report is made of.

    Attributes:
        bundle: opened.
        verification: None where it was not run.
        table: a benchmark; None where it was not run.
        mem_lens: memory lengths that the costs and the commands name.
    """

    bundle: Bundle
    verification: Report | None
    table: Table | None
    mem_lens: tuple[int, ...]

    def parts(self) -> dict[str, list[Part]]:
        """Pictures by section, drawn now."""
        path, lengths = self.bundle.path, list(self.mem_lens)
        return {
            "memory": list(memory_parts(self.table, path, lengths)),
            "speed": list(speed_parts(self.table, path, lengths)),
            "accuracy": list(accuracy_parts(self.verification, path)),
        }

    @property
    def tradeoff(self) -> Tradeoff | None:
        """What memory brings and costs the bundle's model."""
        return tradeoff(self.table, self.bundle.path) if self.table else None

    @property
    def own_row(self) -> Row | None:
        """The call that the headline speaks of: at the bundle's M, or at the nearest that was timed."""
        found = self.tradeoff
        timed = found.timed if found else []
        own = self.bundle.manifest.mem_len
        return min(timed, key=lambda n: abs(n.mem_len - own)).row if timed else None
