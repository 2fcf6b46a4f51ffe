"""What `doctor` finds: the machine, its packages, and each backend with the reason why it works or does not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from txl_export.diagnosis.machine import Machine
from txl_export.diagnosis.packages import Found

FORMAT, SCHEMA = "txl-export-doctor", 1


@dataclass(frozen=True)
class BackendState:
    """Whether a backend works.

    Attributes:
        name: as `--backend` takes it.
        works: on this machine; for a bundle, whether it is run.
        why: what it runs, or what stands in the way first, in a few words.
        commands: what to do, in order, for it to work; none where it works or nothing helps.
    """

    name: str
    works: bool
    why: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The result of `doctor`.

    Attributes:
        version: of this package.
        machine: what it has.
        packages: those that backends need, installed or not.
        backends: every backend, fastest first.
        bundle: path of the bundle that backends were asked about; None for the machine alone.
    """

    version: str
    machine: Machine
    packages: tuple[Found, ...]
    backends: tuple[BackendState, ...]
    bundle: str | None = None

    @property
    def works(self) -> bool:
        """Whether some backend does."""
        return any(b.works for b in self.backends)

    @property
    def taken(self) -> str | None:
        """The backend that `Engine.load` takes for the bundle when none is named; None for none, or no bundle."""
        return next((b.name for b in self.backends if b.works), None) if self.bundle is not None else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            **dataclasses.asdict(self),
            "works": self.works,
            "taken": self.taken,
        }
