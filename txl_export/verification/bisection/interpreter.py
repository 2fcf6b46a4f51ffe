"""One node at a time, computed by ONNX's own reference implementation: slow, plain, and in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from txl_export.number_types import DOMAIN, OPERATOR, WeightFormat
from txl_export.verification.bisection.graph_view import GraphView, Node
from txl_export.verification.bisection.numbers import is_float

# They move numbers without computing any, so large tables are not copied to be widened.
_MOVES = frozenset(
    {"Concat", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze"}
)


def _gather_elements(inputs: Sequence[Any], attributes: dict[str, Any]) -> list[np.ndarray]:
    """The reference implementation refuses indices that are shorter than the data on other axes."""
    data, index = inputs
    axis = attributes.get("axis", 0)
    cut = tuple(slice(None) if i == axis % data.ndim else slice(n) for i, n in enumerate(index.shape))
    return [np.take_along_axis(data[cut], index, axis)]


def _tensor_scatter(inputs: Sequence[np.ndarray], attributes: dict[str, Any]) -> list[np.ndarray]:
    """As a session runs it: rows that would go beyond the end are an error, whichever mode."""
    data, rows, slots = inputs
    found = data.copy()
    axis = attributes.get("axis", -2) % data.ndim
    for b, slot in enumerate(slots):
        np.moveaxis(found[b], axis - 1, 0)[slot : slot + rows.shape[axis]] = np.moveaxis(rows[b], axis - 1, 0)
    return [found]


def _few_bits(inputs: Sequence[Any], attributes: dict[str, Any]) -> list[np.ndarray]:
    """ONNX Runtime's product with weights of few bits.

    In float64 from the operand as it is, in float32 from the operand rounded as the operator may round it: how far
    both are apart is what its kind of rounding explains.
    """
    import torch

    from txl_export.graphs.stored import InBlocks

    x, codes, scales = (torch.from_numpy(np.array(a)) for a in inputs[:3])
    bias = torch.from_numpy(np.array(inputs[5])) if len(inputs) > 5 else None
    level = attributes.get("accuracy_level", 0) if x.dtype == torch.float32 else 0
    stored = InBlocks(WeightFormat(attributes["bits"], attributes["block_size"], level))
    return [stored.product(x, {"codes": codes, "scales": scales}, bias).numpy()]


# One line per operator that is not left to ONNX's implementation.
_OWN: dict[str, Callable[[Sequence[Any], dict[str, Any]], list[np.ndarray]]] = {
    "GatherElements": _gather_elements,
    "TensorScatter": _tensor_scatter,
    f"{DOMAIN}.{OPERATOR}": _few_bits,
}


class Interpreter:
    """Computes nodes of one graph."""

    def __init__(self, graph: GraphView) -> None:
        """Take the graph for its operator versions."""
        self._graph = graph
        self._ready: dict[Node, Any] = {}

    def run(self, node: Node, inputs: Sequence[np.ndarray | None], dtype: type) -> list[np.ndarray] | None:
        """What a node gives.

        Args:
            node: the node.
            inputs: one array per input; None for one that is left out.
            dtype: float64 or float32, which all floating point inputs are converted to first.

        Returns:
            One array per output; None where there is no implementation for the operator or these inputs.
        """
        moves = node.op_type in _MOVES
        given = [a if a is None or moves or not is_float(a) else np.asarray(a, dtype) for a in inputs]
        with np.errstate(all="ignore"):
            try:
                return [np.asarray(a) for a in self._compute(node, given)]
            except Exception:  # the implementations raise what they like; an unknown operator is no fault here
                return None

    def _compute(self, node: Node, given: list[np.ndarray | None]) -> Sequence[np.ndarray]:
        from onnx import helper

        if own := _OWN.get(node.op_type):
            attributes = {a.name: helper.get_attribute_value(a) for a in node.proto.attribute}
            return own(given, attributes)
        feeds = {name: a for name, a in zip(node.inputs, given, strict=True) if name}
        return self._evaluator(node).run(None, feeds)

    def _evaluator(self, node: Node) -> Any:
        if node not in self._ready:
            from onnx import GraphProto
            from onnx.reference import ReferenceEvaluator

            graph = GraphProto()
            graph.node.append(node.proto)
            for name in dict.fromkeys(v for v in node.inputs if v):
                graph.input.add().name = name
            for name in node.outputs:
                graph.output.add().name = name
            self._ready[node] = ReferenceEvaluator(graph, opsets=self._graph.opsets)
        return self._ready[node]
