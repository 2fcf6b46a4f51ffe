"""The search: from the first segment out of tolerance to the node that loses the accuracy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from txl_export.bundle import Bundle, GraphSpec
from txl_export.verification.bisection import layers, naming, sources
from txl_export.verification.bisection.alignment import Alignment, Deviation, Effects
from txl_export.verification.bisection.calls import Call, calls
from txl_export.verification.bisection.causes import Cause, cause_of
from txl_export.verification.bisection.culprit import Constant, Evidence, Inquiry
from txl_export.verification.bisection.finding import Finding, Place
from txl_export.verification.bisection.graph_view import GraphView, from_file
from txl_export.verification.bisection.judge import Judge
from txl_export.verification.bisection.layers import PartError
from txl_export.verification.bisection.numbers import Range, distance, scale
from txl_export.verification.bisection.parts import output_of, parts_of
from txl_export.verification.bisection.probe import Arrays, Probe, probe
from txl_export.verification.report import Report
from txl_export.verification.tokens import Tokens

if TYPE_CHECKING:
    from txl_export.checkpoints import Checkpoint
    from txl_export.reference import Memory
    from txl_export.runtime.engine import Engine

# Deviations whose effect is measured: each costs one pass over the part in float64.
_MOST = 12
# A node that causes this share of the error alone is the one to name; the first such.
_MAIN = 0.5


def find(bundle: Bundle, engine: Engine, checkpoint: Checkpoint, tokens: Tokens, report: Report) -> Finding:
    """Where a verification that failed went wrong.

    Args:
        bundle: the bundle.
        engine: it, loaded.
        checkpoint: the judge.
        tokens: what was run.
        report: what came out.

    Returns:
        The finding; `Finding(lost=False)` for a report that passed.

    Raises:
        InputError: a backend that shows no intermediate values.
    """
    return Finding(lost=False) if report.passed else _Search(bundle, engine, checkpoint, tokens, report).run()


@dataclass(frozen=True)
class _Graph:
    """One graph of the bundle, its nodes and its probe."""

    spec: GraphSpec
    parts: tuple[str, ...]
    view: GraphView
    probe: Probe

    @property
    def ends(self) -> list[str]:
        """Names of the hidden states after the embedding and each layer."""
        return [name for p in self.parts if (name := output_of(p))]


class _Search:
    def __init__(self, bundle: Bundle, engine: Engine, checkpoint: Checkpoint, tokens: Tokens, report: Report) -> None:
        self.bundle, self.engine, self.report, self.tokens = bundle, engine, report, tokens
        self.judge = Judge(checkpoint, bundle.manifest)
        self._graphs: dict[str, _Graph] = {}

    def run(self) -> Finding:
        """Look at the first segment out of tolerance, then at the memory that it started from."""
        segment = self.report.worst_segment.index
        head = self.engine.info.head(self.report.head)
        todo = calls(self.tokens, self.report.segment_len, head, self.engine.info, segment)
        memory = self.judge.start(self.report.batch_size)
        for call in todo:
            if call.segment == segment and (finding := self._examine(call, memory)):
                return finding
            memory = self.judge.advance(memory, call)
        return self._first_rows() or self._memory(todo) or self._between(todo)

    def _examine(self, call: Call, memory: Memory) -> Finding | None:
        """One call that starts from the reference's memory: None when it is within tolerance."""
        graph, feeds = self._graph(call), self.judge.feeds(memory, call)
        plain = graph.probe.run(feeds, ())
        observed = graph.probe.run(feeds, graph.ends)
        errors = self._errors(graph, call, memory, observed)
        lost = [e for e in errors if e.lost]
        if not lost and any(e.lost for e in self._errors(graph, call, memory, plain)):
            return self._finding(call, errors, _fused())
        return self._node(graph, call, memory, errors, lost) if lost else None

    def _errors(self, graph: _Graph, call: Call, memory: Memory, observed: Arrays) -> list[PartError]:
        single = self.judge.values(memory, call, graph.spec.head)
        double = self.judge.values(memory, call, graph.spec.head, double=True)
        states, tolerance = self.bundle.manifest.states, self.report.limits.log_probs
        return layers.compare(observed, single, double, graph.parts, states, tolerance)

    def _graph(self, call: Call) -> _Graph:
        m, length = self.bundle.manifest, call.ids.shape[1]
        segment = next(s for s in self.engine.info.segments if length in s)
        spec = next(g for g in m.graphs if (g.head, g.segment) == (self.report.head, segment))
        if spec.file not in self._graphs:
            parts = parts_of(m, spec)
            view, proto = from_file(self.bundle.path / spec.file, parts)
            self._graphs[spec.file] = _Graph(spec, parts, view, probe(self.engine.backend, proto, self.bundle.path))
        return self._graphs[spec.file]

    def _finding(self, call: Call, errors: list[PartError], cause: Cause, part: str | None = None) -> Finding:
        return Finding(True, call.segment, call.start, part, None, cause, (), tuple(errors))

    def _node(
        self, graph: _Graph, call: Call, memory: Memory, errors: list[PartError], lost: list[PartError]
    ) -> Finding:
        """The node to blame, looked for in the first part that is out of tolerance, then in those before it."""
        first = graph.parts.index(lost[0].part)
        judges = self.judge.graph(graph.spec)
        feeds = self.judge.feeds(memory, call)
        for part in reversed(graph.parts[: first + 1]):
            ends = [e.value for e in errors if e.part == part and (e.lost or part != lost[0].part)]
            found = _Region(graph, judges, part, feeds, ends).blame(self._origin)
            if found:
                place, cause, others, at = found
                return Finding(True, call.segment, call.start, at, place, cause, others, tuple(errors))
        return self._finding(call, errors, _no_node(lost[0]), lost[0].part)

    def _origin(self, part: str, constant: Constant, at: tuple[int, ...]) -> sources.Source | None:
        return sources.find(self.judge, part, constant.expected, at)

    def _first_rows(self) -> Finding | None:
        """Whether the streams start from the memory that the reference starts from."""
        session = self.engine.session(self.report.batch_size)
        expected = self.judge.states(self.judge.start(self.report.batch_size))
        for name, array in session._streams.state().items():
            if name in expected and not distance(array, expected[name]) <= 1e-5 * max(1.0, scale(expected[name])):
                layer = next(s.layer for s in self.bundle.manifest.states if s.input == name)
                reason = f"the first rows of {name} are {Range.of(array)}, expected {Range.of(expected[name])}"
                advice = "export again: initial.safetensors is not this model's"
                return Finding(True, 0, 0, f"layers.{layer}", None, Cause("first memory", reason, advice))
        return None

    def _memory(self, todo: list[Call]) -> Finding | None:
        """The first call that writes a wrong memory, all of them started from the reference's."""
        memory = self.judge.start(self.report.batch_size)
        for call in todo:
            if finding := self._examine(call, memory):
                return finding
            memory = self.judge.advance(memory, call)
        return None

    def _between(self, todo: list[Call]) -> Finding:
        """Every call is right by itself: the backend loses the memory between calls, or small errors add up."""
        session = self.engine.session(self.report.batch_size)
        for call in todo:
            before = session._streams.state()
            targets = {} if call.targets is None else {"targets": call.targets}
            graph = self._graph(call)
            alone = graph.probe.run({"input_ids": call.ids} | before | targets, ())
            session.feed(call.ids, call.ids.shape[1], self.report.head, targets=call.targets)
            after = session._streams.state()
            for name, array in after.items():
                expected = alone[f"new_{name}"]
                if not distance(array, expected) <= 1e-4 * max(1.0, scale(expected)):
                    return self._finding(call, [], _fed_back(name))
        return self._finding(todo[-1], [], _adds_up())


class _Region:
    """The nodes of one part and of the opening, which every layer takes its visibility from."""

    def __init__(self, graph: _Graph, judges: GraphView, part: str, feeds: Arrays, ends: list[str]) -> None:
        self.part, self.feeds, self.ends = part, feeds, ends
        names = dict.fromkeys(("opening", part))
        self.nodes = judges.of(*names)
        mine = graph.view.of(*names)
        taps = {v for n in mine for v in (*n.inputs, *n.outputs) if v in graph.view.producers}
        observed = graph.probe.run(feeds, taps)
        self.alignment = Alignment(judges, graph.view, feeds | observed)
        self.deviations = self.alignment.walk(self.nodes)

    def blame(self, origin) -> tuple[Place, Cause, tuple[str, ...], str] | None:  # type: ignore[no-untyped-def]
        """The node, the cause, the other nodes out of tolerance and the part; None when every node is right."""
        if not self.deviations:
            return None
        effects = Effects(self.alignment, self.nodes, self.ends)
        share, main = self._main(effects)
        if not share:
            return None
        evidence = replace(Inquiry(self.alignment, main).evidence(), mask=self._mask(main, effects))
        cause = cause_of(evidence, lambda c, at: origin(main.node.part, c, at))
        others = sorted((d for d in self.deviations if d is not main), key=lambda d: -d.error / (d.allowed or 1e-9))
        return self._place(evidence, share), cause, tuple(d.name for d in others), main.node.part

    def _main(self, effects: Effects) -> tuple[float, Deviation]:
        """The first deviation that explains most of the error, or the one that explains most of it."""
        worst = sorted(self.deviations, key=lambda d: -d.error / (d.allowed or 1e-9))[:_MOST]
        shares = [(effects.share(d), d) for d in self.deviations if d in worst]
        return next((s for s in shares if s[0] >= _MAIN), None) or max(shares, key=lambda s: s[0])

    def _mask(self, main: Deviation, effects: Effects) -> tuple[np.ndarray, np.ndarray] | None:
        """What is seen and what should be, where the deviation plays a part in it."""
        name = "opening/visible"
        if name not in effects.clean or main.value not in self.alignment.judge.above(name):
            return None
        return self.alignment.observed[self.alignment.names.get(name, name)], effects.clean[name]

    def _place(self, e: Evidence, share: float) -> Place:
        judges = self.alignment.judge
        node = naming.described(judges, e.judges)
        module = naming.module_of(node, e.mask is not None)
        d = e.deviation
        return Place(
            e.node.name,
            e.node.op_type,
            e.node.value,
            module,
            naming.source_of(node),
            Range.of(e.found),
            Range.of(e.expected),
            d.error,
            d.index,
            d.allowed,
            share,
        )


def _no_node(error: PartError) -> Cause:
    return Cause(
        "tracing",
        f"every node gives what the judge's own graph gives for the same inputs, and yet {error.value} differs "
        f"from the reference by {error.error:.3g} where rounding explains {error.allowed:.1e}",
        "the traced code differs from the reference model: report it with this model's configuration",
    )


def _fused() -> Cause:
    return Cause(
        "operator",
        "the error is there when the backend may merge nodes over the ends of layers, and gone when it must keep "
        "the values there",
        "load the graph with a lower level of graph optimisation, or try another version of the backend",
    )


def _fed_back(name: str) -> Cause:
    return Cause(
        "memory fed back",
        f"the backend's {name} after the call is not what the graph gives for the same inputs",
        "the runtime, not the graph, loses the memory: report it",
    )


def _adds_up() -> Cause:
    return Cause(
        "accumulation",
        "every segment is within rounding when it starts from the reference's memory, so small errors add up in the "
        "memory over the segments",
        "run fewer segments from one start, or export in a higher precision",
    )
