"""What a build gave, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from txl_export.building.targets import describe
from txl_export.bundle import Bundle, GraphSpec
from txl_export.engines import EngineSpec


@dataclass(frozen=True)
class Built:
    """An engine of a build.

    Attributes:
        engine: as the manifest has it.
        graph: the graph that it was built from.
        bytes: size of its file.
        new: whether it was built now; else it was there and up to date.
    """

    engine: EngineSpec
    graph: GraphSpec
    bytes: int
    new: bool

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {**described(self.engine, self.graph, self.bytes), "new": self.new}


def described(engine: EngineSpec, graph: GraphSpec, nbytes: int) -> dict[str, Any]:
    """An engine with what it is for, JSON-ready.

    Args:
        engine: as the manifest has it.
        graph: the graph that it was built from.
        nbytes: size of its file.
    """
    about = {"segment": str(graph.segment), "head": graph.head, "for": describe(engine.target), "bytes": nbytes}
    return {**engine.to_dict(), **about}


@dataclass(frozen=True)
class BuildReport:
    """What a build gave: the bundle with its engines, and those that were asked for, in the order of its graphs."""

    bundle: Bundle
    engines: tuple[Built, ...]

    @property
    def target(self) -> str:
        """The GPUs that the engines are for, in words."""
        return describe(self.engines[0].engine.target)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        first = self.engines[0].engine
        return {
            "bundle": str(self.bundle.path),
            "backend": first.package,
            "version": first.version,
            "for": self.target,
            "engines": [e.to_dict() for e in self.engines],
        }
