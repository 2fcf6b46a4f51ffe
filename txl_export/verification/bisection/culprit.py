"""From a value that deviates to the node of the bundle's graph that is to blame, with the evidence about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from txl_export.verification.bisection.alignment import Alignment, Deviation
from txl_export.verification.bisection.graph_view import CASTS, Node
from txl_export.verification.bisection.interpreter import Interpreter
from txl_export.verification.bisection.numbers import allowance, distance, is_float, scale

# Constants are the judge's when they agree to this share of the largest: another machine may round differently.
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant of the bundle's graph that is not the judge's.

    Attributes:
        name: its name in the bundle's graph.
        judges: the name of the judge's.
        found: its values.
        expected: the judge's.
    """

    name: str
    judges: str
    found: np.ndarray = field(repr=False)
    expected: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that is known about a fault in a node.

    Attributes:
        deviation: the value that is wrong.
        node: the bundle's node that is to blame.
        found: its output.
        expected: what that output should be, float64.
        own_error: how far its output is from what its own operator gives for its own inputs; None if unknown.
        own_allowed: what rounding explains of that.
        constants: constants that are not the judge's.
        extra: whether the judge's graph has no such node.
        mask: what is seen and what should be: arrays of `visible`; None where the value plays no part in it.
    """

    deviation: Deviation
    node: Node
    found: np.ndarray = field(repr=False)
    expected: np.ndarray = field(repr=False)
    own_error: float | None
    own_allowed: float
    constants: list[Constant]
    extra: bool
    mask: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    @property
    def judges(self) -> Node:
        """The judge's node for that value."""
        return self.deviation.node


class Inquiry:
    """Looks at the bundle's nodes behind one deviation."""

    def __init__(self, alignment: Alignment, deviation: Deviation) -> None:
        """Take a deviation of an alignment that was walked."""
        self._a, self._d = alignment, deviation
        self._interpreter = Interpreter(alignment.bundle)
        self._values: dict[str, np.ndarray | None] = {}

    def evidence(self) -> Evidence:
        """The node to blame and what is known of it."""
        cone = self._cone()
        node = self._blamed(cone)
        constants = [c for n in cone for c in self._constants(n)]
        own_error, own_allowed = self._own(node)
        last = bool(cone) and node is cone[-1]
        extra = node.op_type != self._d.node.op_type and (len(cone) > 1 or node.op_type in CASTS)
        found = self._value(node.value)
        expected: np.ndarray | None = self._d.exact
        if extra and not last and node.op_type in CASTS:
            expected = constants[0].expected if constants else self._value(node.inputs[0])
        if found is None or expected is None or found.shape != expected.shape:
            found, expected = self._d.found, self._d.exact
        return Evidence(self._d, node, found, expected, own_error, own_allowed, constants, extra)

    def _cone(self) -> list[Node]:
        """The bundle's nodes between the inputs of the judge's node and the value, in topological order."""
        known = {self._a.names.get(v, v) for v in self._d.node.inputs}
        known |= {name for value, name in self._a.names.items() if value != self._d.value}
        wanted, stack = set[Node](), [self._d.name]
        while stack:
            node = self._a.bundle.producers.get(stack.pop())
            if node is not None and node not in wanted:
                wanted.add(node)
                stack += [v for v in node.inputs if v not in known]
        return [n for n in self._a.bundle.nodes if n in wanted]

    def _blamed(self, cone: list[Node]) -> Node:
        """The node whose output is no value that the judge's node takes or gives; casts and odd results first."""
        strange = [n for n in cone if not self._ordinary(n)]
        wrong = [n for n in strange if self._miscomputes(n)]
        casts = [n for n in strange if n.op_type in CASTS]
        same = [n for n in strange if n.op_type == self._d.node.op_type]
        order = [*casts, *wrong, *same, *strange, self._a.bundle.producers[self._d.name]]
        return order[0]

    def _ordinary(self, node: Node) -> bool:
        found = self._value(node.value)
        return found is not None and any(
            g.size == found.size and distance(found.reshape(g.shape), g) <= allowed for g, allowed in self._good()
        )

    def _good(self) -> Iterator[tuple[np.ndarray, float]]:
        """The values that are right here, each with what rounding allows."""
        yield self._d.exact, self._d.allowed
        for v in self._d.node.inputs:
            array = self._a._input(v)
            if array is not None:
                yield array, SAME * scale(array) if is_float(array) else 0.0

    def _miscomputes(self, node: Node) -> bool:
        error, allowed = self._own(node)
        return error is not None and not error <= allowed

    def _own(self, node: Node) -> tuple[float | None, float]:
        """How far a node's output is from its own operator's for its own inputs, and what rounding explains."""
        found = self._a.observed.get(node.value)
        inputs = [self._value(v) for v in node.inputs]
        exact = self._interpreter.run(node, inputs, np.float64)
        rounded = self._interpreter.run(node, inputs, np.float32)
        if found is None or not exact or not rounded:
            return None, 0.0
        return distance(found, exact[0]), allowance(exact[0], rounded[0])

    def _value(self, name: str) -> np.ndarray | None:
        """What the bundle's graph has there: observed, a constant, or computed where the backend cannot show it."""
        if not name:
            return None
        if name not in self._values:
            seen = self._a.observed.get(name)
            self._values[name] = self._a.bundle.constant(name) if seen is None else seen
            node = self._a.bundle.producers.get(name)
            if self._values[name] is None and node is not None:
                made = self._interpreter.run(node, [self._value(v) for v in node.inputs], np.float32)
                self._values[name] = made[node.outputs.index(name)] if made else None
        return self._values[name]

    def _constants(self, node: Node) -> Iterator[Constant]:
        """Constants of a node that differ from the judge's in the same place."""
        for slot, name in enumerate(node.inputs):
            found = self._a.bundle.constant(name) if name else None
            judges = None if found is None else self._judges(node, slot, name, found.shape)
            if found is None or judges is None:
                continue
            expected = self._a.judge.constant(judges)
            assert expected is not None
            near = SAME * scale(expected) if is_float(expected) else 0.0
            if found.shape != expected.shape or not distance(found, expected) <= near:
                yield Constant(name, judges, found, expected)

    def _judges(self, node: Node, slot: int, name: str, shape: tuple[int, ...]) -> str | None:
        """Name of the judge's constant for an input: of the same name, in the same place, or of the same shape."""
        theirs = self._d.node.inputs
        places = [slot] if node.op_type == self._d.node.op_type and slot < len(theirs) else []
        candidates = [name, *(theirs[i] for i in places)]
        for c in candidates:
            if c in theirs and self._a.judge.constant(c) is not None:
                return c
        return next((v for v in theirs if v and self._is_like(v, shape)), None)

    def _is_like(self, judges: str, shape: tuple[int, ...]) -> bool:
        constant = self._a.judge.constant(judges)
        return constant is not None and constant.shape == shape and constant.size > 1
