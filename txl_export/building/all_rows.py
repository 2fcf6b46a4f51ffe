"""Graphs in which heads compute all rows: TensorRT's parser has no NonZero.

The heads `target` and `top_k` compute a tail cluster for the rows of a mask. They are written so that more rows
than these change nothing (`txl_export.graphs.heads`), so here each choice of rows becomes all rows.
"""

from __future__ import annotations

from typing import Any

from txl_export.errors import missing_extra

CHOICE = "NonZero"


def with_all_rows(graph: bytes) -> bytes:
    """A graph whose heads choose no rows.

    Args:
        graph: a serialized ONNX model, its weights in other files or not.

    Returns:
        the same where it has no such node, or is no model; else a model in its place.

    Raises:
        EnvironmentMismatch: without the package onnx.
    """
    if CHOICE.encode() not in graph:
        return graph
    try:
        import onnx
    except ImportError:
        raise missing_extra("onnx", "export", "an engine of head target or top_k with tail clusters") from None
    try:
        model = onnx.load_model_from_string(graph)
    except Exception:  # protobuf's errors have no public base class; the parser says what is wrong with the file
        return graph
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(new for node in nodes for new in _replaced(node, onnx.helper))
    return bytes(model.SerializeToString())


def _replaced(node: Any, helper: Any) -> list[Any]:
    """The node, or what numbers the rows of its input [n] from 0: [1, n] int64, as NonZero gives."""
    if node.op_type != CHOICE or not node.name.startswith("heads."):
        return [node]
    mask, rows, name = node.input[0], node.output[0], node.name
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Shape", [mask], "shape", {}),
        ("Squeeze", [f"{rows}/shape"], "count", {}),
        ("Constant", [], "zero", {"value_int": 0}),
        ("Constant", [], "one", {"value_int": 1}),
        ("Range", [f"{rows}/zero", f"{rows}/count", f"{rows}/one"], "range", {}),
        ("Constant", [], "axes", {"value_ints": [0]}),
    ]
    made = [helper.make_node(op, given, [f"{rows}/{out}"], f"{name}/{out}", **more) for op, given, out, more in steps]
    return [*made, helper.make_node("Unsqueeze", [f"{rows}/range", f"{rows}/axes"], [rows], name)]
