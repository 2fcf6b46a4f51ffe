"""How to build, checked as far as that goes without the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txl_export.building.packages import Package
from txl_export.building.profiles import BatchRange
from txl_export.errors import InputError


@dataclass(frozen=True)
class Options:
    """How to build; see `build`."""

    package: Package
    batch: BatchRange
    capabilities: tuple[str, ...]
    opt_level: int | None
    workspace: int | None
    timing_cache: Path | None
    tf32: bool
    force: bool

    def check(self) -> None:
        """What can be told without the package; raises InputError."""
        level, workspace = self.opt_level, self.workspace
        if level is not None and (type(level) is not int or not 0 <= level <= 5):
            raise InputError(f"opt_level is {level!r}, expected 0 to 5")
        if workspace is not None and (type(workspace) is not int or not 1 <= workspace < 2**63):
            raise InputError(f"workspace is {workspace!r}, expected a number of bytes below 2**63")
        if self.timing_cache is None:
            return
        if not self.package.timing_cache:
            raise InputError(f"{self.package.name} keeps no timings, its engines are timed where they run: "
                             "leave out --timing-cache")  # fmt: skip
        if self.timing_cache.exists() and not self.timing_cache.is_dir():
            raise InputError(f"{self.timing_cache} is a file, expected a folder for timings")
