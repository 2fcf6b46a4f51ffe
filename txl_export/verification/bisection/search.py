"""The search: from the first segment out of tolerance to the node that loses the accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from txl_export.bundle import Bundle
from txl_export.tokens import Tokens
from txl_export.verification.bisection import layers, sources
from txl_export.verification.bisection.alignment import names_agree
from txl_export.verification.bisection.calls import Call, calls
from txl_export.verification.bisection.causes import Cause
from txl_export.verification.bisection.culprit import Constant
from txl_export.verification.bisection.finding import Finding
from txl_export.verification.bisection.graph_view import GraphView, from_file, low_precision
from txl_export.verification.bisection.judge import Judge
from txl_export.verification.bisection.layers import PartError
from txl_export.verification.bisection.numbers import Range, distance, scale
from txl_export.verification.bisection.parts import parts_of
from txl_export.verification.bisection.probe import Arrays, probe
from txl_export.verification.bisection.region import Graph, Region
from txl_export.verification.bisection.rows import held, places
from txl_export.verification.report import Report

if TYPE_CHECKING:
    from txl_export.checkpoints import Checkpoint
    from txl_export.reference import Memory
    from txl_export.runtime.engine import Engine

# Memory that differs by more than this share of its largest number was not copied or rounded.
_SHARE = 1e-4


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
    return Finding(lost=False) if report.passed else Search(bundle, engine, checkpoint, tokens, report).run()


class Search:
    """One failed verification, looked into."""

    def __init__(self, bundle: Bundle, engine: Engine, checkpoint: Checkpoint, tokens: Tokens, report: Report) -> None:
        """Take what `find` takes."""
        self.bundle, self.engine, self.report, self.tokens = bundle, engine, report, tokens
        self.judge = Judge(checkpoint, bundle.manifest)
        self._graphs: dict[str, Graph] = {}

    def run(self) -> Finding:
        """Look at the first segment out of tolerance, then at the memory that it started from."""
        segment = self.report.worst_segment.index
        head = self.engine.info.head(self.report.head)
        plans = self.engine.session(self.report.batch_size)._streams
        todo = calls(self.tokens, self.report.segment_len, head, plans, segment)
        for call, memory in self._along(todo):
            if call.segment == segment and (found := self._examine(call, memory, False)):
                return found
        found = self._first_rows() or self._left_behind(todo) or self._between(todo)
        return replace(found, seen=segment)

    def _along(self, todo: list[Call]) -> Iterator[tuple[Call, Memory]]:
        """Each call with the reference's memory before it."""
        memory = self.judge.start(self.report.batch_size)
        for call in todo:
            memory = self.judge.before(memory, call)
            yield call, memory
            memory = self.judge.advance(memory, call)

    def _examine(self, call: Call, memory: Memory, remembered: bool) -> Finding | None:
        """One call that starts from the reference's memory.

        Args:
            call: the call.
            memory: of the reference before it.
            remembered: whether a wrong memory after the call counts, or only what is wrong in the call itself.

        Returns:
            None when it is within tolerance.
        """
        graph, feeds = self._graph(call), self.judge.feeds(memory, call)
        kept = self._errors(graph, call, memory, graph.probe.run(feeds, graph.ends))
        lost = [e for e in kept if e.lost]
        if any(remembered or not e.remembered for e in lost):
            return self._node(graph, call, memory, kept)
        plain = self._errors(graph, call, memory, graph.probe.run(feeds, ()))
        merged = any(e.lost and (remembered or not e.remembered) for e in plain)
        return self._merged(graph, call, memory, plain) if merged else None

    def _merged(self, graph: Graph, call: Call, memory: Memory, plain: list[PartError]) -> Finding:
        """The error goes when the backend must keep the ends of all parts: find the part whose end it is."""
        feeds = self.judge.feeds(memory, call)
        for part, end in zip(graph.parts, graph.ends, strict=False):
            if not any(e.lost for e in self._errors(graph, call, memory, graph.probe.run(feeds, (end,)))):
                return self._finding(call, plain, _merged(f"the value {end}"), part)
        return self._finding(call, plain, _merged("the values at the ends of layers"))

    def _errors(self, graph: Graph, call: Call, memory: Memory, observed: Arrays) -> list[PartError]:
        half = self.bundle.manifest.precision != "fp32"
        values = self.judge.rounded if half else self.judge.values
        single = values(memory, call, graph.spec.head)
        double = self.judge.values(memory, call, graph.spec.head, double=True)
        states = self.bundle.manifest.states
        # Where only a sum over all segments is out of tolerance, every answer beyond rounding counts.
        tolerance = self.report.limits.log_probs if self.report.failed_segment else None
        return layers.compare(self.judge.counted(observed, call), single, double, graph.parts, states, tolerance)

    def _graph(self, call: Call) -> Graph:
        m, length = self.bundle.manifest, call.step.length
        segment = next(s for s in self.engine.info.segments if length in s)
        spec = next(g for g in m.graphs if (g.head, g.segment) == (self.report.head, segment))
        if spec.file not in self._graphs:
            parts = parts_of(m, spec)
            view, proto = from_file(self.bundle.path / spec.file, parts)
            runs = probe(self.engine.model, self.bundle, spec, proto)
            self._graphs[spec.file] = Graph(spec, parts, view, runs, low_precision(proto))
        return self._graphs[spec.file]

    def _node(self, graph: Graph, call: Call, memory: Memory, errors: list[PartError]) -> Finding:
        """The node to blame, looked for in the first part that is out of tolerance, then in those before it."""
        lost = [e for e in errors if e.lost]
        # Numbers that are no longer finite matter more than any rounding before them.
        first = next((e for e in lost if e.error == float("inf")), lost[0])
        judges, feeds = self.judge.graph(graph.spec), self.judge.feeds(memory, call)
        for parts in _regions(graph, judges, first.part):
            ends = [e.value for e in errors if e.part in parts and e.error is not None]
            region = Region(graph, judges, parts, feeds, ends, self.judge.rows.order(call))
            if blame := region.blame(self._origin):
                found = self._finding(call, errors, _spread(blame.cause, graph), blame.part)
                return replace(found, place=blame.place, others=blame.others)
            again = self._errors(graph, call, memory, region.observed) if first.part in parts else []
            if again and not any(e.lost for e in again if e.value == first.value):
                return self._finding(call, errors, _merged("all values inside this part"), first.part)
        return self._finding(call, errors, _no_node(first, self.bundle.manifest.precision), first.part)

    def _origin(self, part: str, constant: Constant, at: tuple[int, ...]) -> sources.Source | None:
        return sources.find(self.judge, part, constant.expected, at)

    def _finding(self, call: Call, errors: list[PartError], cause: Cause, part: str | None = None) -> Finding:
        return Finding(True, call.segment, call.segment, call.start, part, None, cause, (), tuple(errors))

    def _first_rows(self) -> Finding | None:
        """Whether streams that start from rows that count start from those that the reference starts from."""
        m = self.bundle.manifest
        found = self.engine.session(self.report.batch_size)._streams.state() if m.start else {}
        expected = self.judge.states(self.judge.start(self.report.batch_size))
        for s in m.states if m.start else ():
            rows = found[s.input].take(range(-m.mem_len, 0), 1 + s.row_axis)
            if not _close(rows, expected[s.input]):
                reason = f"the first rows of {s.input} are {Range.of(rows)}, expected {Range.of(expected[s.input])}"
                cause = Cause("first memory", reason, "export again: initial.safetensors is not this model's", s.input)
                return Finding(True, 0, 0, 0, f"layers.{s.layer}", None, cause)
        return None

    def _left_behind(self, todo: list[Call]) -> Finding | None:
        """The first call that leaves a wrong memory, all of them started from the reference's."""
        return next((f for call, memory in self._along(todo) if (f := self._examine(call, memory, True))), None)

    def _between(self, todo: list[Call]) -> Finding:
        """Every call is right by itself: the backend loses the memory between calls, or small errors add up."""
        streams, head = self.engine.session(self.report.batch_size)._streams, self.engine.info.head(self.report.head)
        for call in todo:
            alone = self._graph(call).probe.run({**call.tokens, **held(streams), **places(streams, call)}, ())
            answers = [np.empty_like(alone[o.name]) for o in head.outputs]
            streams.call(call.tokens["input_ids"], head.name, call.tokens.get("targets"), answers, call.step)
            for name, array in held(streams).items():
                if not _close(array, alone[f"new_{name}"]):
                    return self._finding(call, [], _fed_back(name))
        return self._finding(todo[-1], [], _adds_up())


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return distance(a, b) <= _SHARE * max(1.0, scale(b))


def _regions(graph: Graph, judges: GraphView, first: str) -> list[tuple[str, ...]]:
    """The parts to look at together: one at a time, or all where names do not say what is what."""
    if not names_agree(judges, graph.view):
        return [graph.parts]
    one_by_one = [(p,) for p in reversed(graph.parts[: graph.parts.index(first) + 1])]
    return [*one_by_one, graph.parts]


def _spread(cause: Cause, graph: Graph) -> Cause:
    """Say so when one cast constant is one of many: the graph was converted as a whole."""
    low, floats = graph.low
    if cause.name != "cast" or low < 2:
        return cause
    reason = f"{cause.reason}, as are {low} of the graph's {floats} floating point constants"
    return replace(cause, reason=reason, advice="the whole graph was converted: use the graph before that")


def _no_node(error: PartError, precision: str) -> Cause:
    if precision != "fp32":
        return Cause(
            "precision",
            f"every node gives what its types allow, and {error.value} differs from the reference by {error.error:.3g}",
            f"{precision} does not hold this text's numbers in {error.part}: export again with it as --calibration, or "
            f"keep the part in fp32 with --tensors '{error.part}.*=fp32'",
        )
    return Cause(
        "tracing",
        f"every node gives what the judge's own graph gives for the same inputs, and yet {error.value} differs "
        f"from the reference by {error.error:.3g} where rounding explains {error.allowed:.1e}",
        "the traced code differs from the reference model: report it with this model's configuration",
    )


def _merged(kept: str) -> Cause:
    return Cause(
        "operator",
        f"the error is there when the backend may merge nodes, and gone when it must keep {kept}",
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
