"""The judge's graph laid beside the bundle's: which value is which, and which nodes give something else.

Every node of the judge's graph is computed in float64 from the values that the bundle's graph had at its
inputs. So what a node gets wrong is seen at that node alone: errors that were handed to it do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from txl_export.verification.bisection.graph_view import CASTS, GraphView, Node
from txl_export.verification.bisection.interpreter import Interpreter
from txl_export.verification.bisection.numbers import allowance, differences, distance, is_float, largest, rounding

Arrays = Mapping[str, np.ndarray]
# Names mean the same in both graphs when at least this share of them is made by the same operator.
_TRUST = 0.8
_FEW = 64


@dataclass(frozen=True, eq=False)
class Deviation:
    """A value of the bundle's graph that is not what the judge's node makes of the same inputs.

    Attributes:
        node: the judge's node.
        value: its output.
        name: the name of that value in the bundle's graph.
        exact: what the judge's node gives, float64.
        found: what the bundle's graph has.
        error: the largest difference.
        index: where it is.
        allowed: what rounding explains.
    """

    node: Node
    value: str
    name: str
    exact: np.ndarray = field(repr=False)
    found: np.ndarray = field(repr=False)
    error: float
    index: tuple[int, ...]
    allowed: float


class Alignment:
    """Values of the judge's graph and their counterparts."""

    def __init__(self, judge: GraphView, bundle: GraphView, observed: Arrays) -> None:
        """Take both graphs and the values that the bundle's graph was seen to have, its inputs included."""
        self.judge, self.bundle, self.observed = judge, bundle, observed
        self.interpreter = Interpreter(judge)
        self.names: dict[str, str] = {}  # of the judge's values to the bundle's
        self.exact: dict[str, np.ndarray] = {}  # of the judge's values, from the bundle's inputs
        self.by_name = names_agree(judge, bundle)
        self._shapes = _Shapes(bundle)

    def walk(self, region: Iterable[Node]) -> list[Deviation]:
        """Compare node by node, in topological order.

        Args:
            region: nodes of the judge's graph; what they take from other nodes must have been observed.

        Returns:
            The deviations in the order in which they arise.
        """
        found = []
        for node in region:
            inputs = [self._input(v) for v in node.inputs]
            exact = self.interpreter.run(node, inputs, np.float64)
            rounded = self.interpreter.run(node, inputs, np.float32)
            if exact is None or rounded is None:
                continue
            for value, e, r in zip(node.outputs, exact, rounded, strict=False):
                self.exact[value] = e
                allowed = max(allowance(e, r), rounding(e, self.judge.types.get(value)))
                if deviation := self._meet(node, value, e, allowed):
                    found.append(deviation)
        return found

    def _input(self, value: str) -> np.ndarray | None:
        """What the bundle's graph had there; where it has no such value, what the judge's nodes make of it."""
        if not value:
            return None
        if (constant := self.judge.constant(value)) is not None:
            return constant
        name = self.names.get(value, value)
        return self.observed[name] if name in self.observed else self.exact.get(value)

    def _meet(self, node: Node, value: str, exact: np.ndarray, allowed: float) -> Deviation | None:
        """Find the counterpart of a value; None where there is none or it agrees."""
        name = self._counterpart(node, value, exact, allowed)
        if name is None:
            return None
        self.names[value] = name
        found = self.observed[name]
        error, index = largest(differences(found, exact))
        return Deviation(node, value, name, exact, found, error, index, allowed) if not error <= allowed else None

    def _counterpart(self, node: Node, value: str, exact: np.ndarray, allowed: float) -> str | None:
        """By name; where names mean nothing, by numbers, and where a fault has changed these, by what it is made of."""
        if (self.by_name or value in self.judge.outputs) and self._seen(value, exact.shape):
            return value
        return self._by_content(exact, allowed) or self._by_structure(node, value, exact.shape)

    def _seen(self, name: str, shape: tuple[int, ...]) -> bool:
        return name in self.observed and self.observed[name].shape == shape

    def _by_content(self, exact: np.ndarray, allowed: float) -> str | None:
        """The first value that has these numbers and is no other value's counterpart."""
        taken = set(self.names.values())
        for name, found in self.observed.items():
            if name in taken or found.shape != exact.shape or is_float(found) != is_float(exact):
                continue
            # A few numbers first: there may be many candidates, and large ones.
            if distance(found.ravel()[:_FEW], exact.ravel()[:_FEW]) <= allowed >= distance(found, exact):
                return name
        return None

    def _by_structure(self, node: Node, value: str, shape: tuple[int, ...]) -> str | None:
        """The output of a node of the same operator whose inputs are the counterparts of this node's inputs."""
        given = [v for v in node.inputs if v and not self.judge.is_constant(v)]
        wanted = tuple(self._shapes.origin(self.names.get(v, v)) for v in given)
        taken = set(self.names.values())
        for like in self._shapes.nodes.get((node.op_type, wanted), []) if wanted else []:
            name = like.outputs[min(node.outputs.index(value), len(like.outputs) - 1)]
            if name not in taken and self._seen(name, shape):
                return name
        return None

    def lost_track(self, region: Iterable[Node]) -> Node | None:
        """The first node after which no value of a region has a counterpart; None when the last one has.

        Where names mean nothing and a fault has changed all that follows, this is the place of the fault.
        """
        first = None
        for node in region:
            floats = [v for v in node.outputs if v in self.exact and is_float(self.exact[v])]
            if any(v in self.names for v in node.outputs):
                first = None
            elif floats and first is None:
                first = node
        return first


class _Shapes:
    """The bundle's nodes by operator and inputs, constants and casts left out."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self.nodes: dict[tuple[str, tuple[str, ...]], list[Node]] = {}
        for node in graph.nodes:
            inputs = tuple(self.origin(v) for v in node.inputs if v and not graph.is_constant(v))
            self.nodes.setdefault((node.op_type, inputs), []).append(node)

    def origin(self, value: str) -> str:
        """The value that was cast, perhaps several times, to give this one."""
        node = self._graph.producers.get(value)
        return self.origin(node.inputs[0]) if node and node.op_type in CASTS else value


def names_agree(judge: GraphView, bundle: GraphView) -> bool:
    """Whether the names of values mean the same in both graphs."""
    shared = [v for v in judge.producers if v in bundle.producers]
    same = sum(judge.producers[v].op_type == bundle.producers[v].op_type for v in shared)
    return bool(shared) and same >= _TRUST * len(shared) and len(shared) >= len(judge.producers) / 4


class Effects:
    """What a single deviation does to the values at the end of a region."""

    def __init__(self, alignment: Alignment, region: list[Node], ends: list[str]) -> None:
        """Compute the region without any deviation.

        Args:
            alignment: walked over the region.
            region: the nodes, in topological order.
            ends: values at its end by which effects are measured.
        """
        self._alignment, self._region = alignment, region
        self._ends = ends
        self.clean = self._forward({})
        observed = {v: alignment.observed[alignment.names[v]] for v in ends if v in alignment.names}
        self._total = self._apart(observed)

    def share(self, deviation: Deviation) -> float:
        """The share of the error at the end that this deviation causes alone, about 1 for the only one."""
        made = self._forward({deviation.value: np.asarray(deviation.found)})
        alone = self._apart(made)
        if not np.isfinite(self._total) or not np.isfinite(alone):
            return float(not np.isfinite(alone))
        return alone / self._total if self._total else 0.0

    def _forward(self, given: Arrays) -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = {}
        inside = {v for node in self._region for v in node.outputs}
        for node in self._region:
            inputs = [values.get(v) if v in inside else self._alignment._input(v) for v in node.inputs]
            made = self._alignment.interpreter.run(node, inputs, np.float64)
            for value, array in zip(node.outputs, made or (), strict=False):
                values[value] = given.get(value, array)
        return values

    def _apart(self, found: Arrays) -> float:
        ends = [v for v in self._ends if v in found and v in self.clean]
        return max((largest(differences(found[v], self.clean[v]))[0] for v in ends), default=0.0)
