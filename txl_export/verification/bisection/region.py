"""Some parts of a graph, run with all their values kept and compared with the judge's graph node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from txl_export.bundle import GraphSpec
from txl_export.verification.bisection import naming
from txl_export.verification.bisection.alignment import Alignment, Deviation, Effects, names_agree
from txl_export.verification.bisection.causes import Cause, cause_of
from txl_export.verification.bisection.culprit import Constant, Evidence, Inquiry
from txl_export.verification.bisection.finding import Place
from txl_export.verification.bisection.graph_view import GraphView
from txl_export.verification.bisection.numbers import Range, is_float
from txl_export.verification.bisection.parts import output_of
from txl_export.verification.bisection.probe import Probe
from txl_export.verification.bisection.sources import Source

# Which tensor of the checkpoint a number of a constant in a part comes from.
Origin = Callable[[str, Constant, tuple[int, ...]], Source | None]
# Deviations whose effect is measured: each costs one pass over the region in float64.
_MOST = 12
# A node that causes this share of the error alone is the one to name; the first such.
_MAIN = 0.5
VISIBLE = "opening/visible"


@dataclass(frozen=True)
class Graph:
    """One graph of a bundle.

    Attributes:
        spec: which.
        parts: in the order in which they run.
        view: its nodes.
        probe: runs it.
        low: how many of its floating point constants have fewer than 32 bits, and how many it has.
    """

    spec: GraphSpec
    parts: tuple[str, ...]
    view: GraphView
    probe: Probe
    low: tuple[int, int] = (0, 0)

    @property
    def ends(self) -> list[str]:
        """Names of the hidden states after the embedding and each layer."""
        return [name for p in self.parts if (name := output_of(p))]


@dataclass(frozen=True)
class Blame:
    """What was found in a region: the part, the node where one can be named, the cause, and other odd nodes."""

    part: str
    place: Place | None
    cause: Cause
    others: tuple[str, ...]


class Region:
    """Parts of a graph, and the opening, which every layer takes its visibility from."""

    def __init__(
        self,
        graph: Graph,
        judges: GraphView,
        parts: tuple[str, ...],
        feeds: Mapping[str, np.ndarray],
        ends: list[str],
        order: np.ndarray | None = None,
    ) -> None:
        """Run the graph and compare.

        Args:
            graph: the bundle's.
            judges: the judge's, of the same length and head.
            parts: the parts to look at.
            feeds: the graph's inputs.
            ends: the values by which the effect of a deviation is measured.
            order: the columns of `visible` by age; None where they stand so.
        """
        self._ends, self._order = ends, slice(None) if order is None else order
        self._nodes = judges.of("opening", *parts)
        mine = graph.view.of("opening", *parts) if names_agree(judges, graph.view) else graph.view.nodes
        taps = {v for n in mine for v in (*n.inputs, *n.outputs) if v in graph.view.producers}
        self.observed = graph.probe.run(feeds, sorted(taps))
        self._alignment = Alignment(judges, graph.view, {**feeds, **self.observed})
        self._deviations = self._alignment.walk(self._nodes)

    def blame(self, origin: Origin) -> Blame | None:
        """The node to blame and why; None when every node is right."""
        if not self._deviations:
            return self._untraceable()
        effects = Effects(self._alignment, self._nodes, self._ends)
        share, main = self._main(effects)
        if not share:
            return self._untraceable()
        evidence = replace(Inquiry(self._alignment, main).evidence(), mask=self._mask(main, effects))
        cause = cause_of(evidence, lambda c, at: origin(main.node.part, c, at))
        others = sorted((d for d in self._deviations if d is not main), key=_severity)
        return Blame(main.node.part, self._place(evidence, share), cause, tuple(d.name for d in others))

    def _untraceable(self) -> Blame | None:
        """The last trace of the judge's graph, where names say nothing and no node could be found to compare."""
        node = None if self._alignment.by_name else self._alignment.lost_track(self._nodes)
        if node is None:
            return None
        told = naming.described(self._alignment.judge, node)
        reason = (
            f"the graph was rewritten: of the judge's graph everything is found up to {node.name} ({node.op_type}, "
            f"{naming.module_of(told)}), whose output {node.value} no node gives, nor anything after it"
        )
        advice = "compare with the graph before it was rewritten, or export again"
        return Blame(node.part, None, Cause("rewritten graph", reason, advice), ())

    def _main(self, effects: Effects) -> tuple[float, Deviation]:
        """The first deviation that explains most of the error, or the one that explains most of it."""
        worst = sorted(self._deviations, key=_severity)[:_MOST]
        shares = [(effects.share(d), d) for d in self._deviations if d in worst]
        return next((s for s in shares if s[0] >= _MAIN), None) or max(shares, key=lambda s: s[0])

    def _mask(self, main: Deviation, effects: Effects) -> tuple[np.ndarray, np.ndarray] | None:
        """What is seen and what should be, where the deviation plays a part in it."""
        if VISIBLE not in effects.clean or main.value not in self._alignment.judge.above(VISIBLE):
            return None
        name = self._alignment.names.get(VISIBLE, VISIBLE)
        seen, should = self._alignment.observed[name], effects.clean[VISIBLE]
        return seen[..., self._order], should[..., self._order]

    def _place(self, e: Evidence, share: float) -> Place:
        node, d = naming.described(self._alignment.judge, e.judges), e.deviation
        return Place(
            node=e.node.name,
            op_type=e.node.op_type,
            value=e.node.value,
            module=naming.module_of(node, e.mask is not None),
            source=naming.source_of(node),
            found=Range.of(e.found),
            expected=Range.of(e.expected, "float32" if is_float(e.expected) else None),
            difference=d.error,
            index=d.index,
            at=(float(d.found[d.index]), float(d.exact[d.index])),
            allowed=d.allowed,
            share=share,
        )


def _severity(d: Deviation) -> float:
    """Sorts the worst first, by how far they are beyond rounding."""
    return -d.error / (d.allowed or 1e-9)
