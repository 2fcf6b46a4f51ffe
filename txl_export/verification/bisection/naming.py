"""From a traced node to the PyTorch module and the line of code that it comes from."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

from txl_export.verification.bisection.graph_view import GraphView, Node

# Where the reference says who sees whom: a method, not a module.
VISIBLE = "TransformerXL.visible"
# Where a memory that is written in place is written and read, which the reference has no part for.
ROWS = "rows of the memory"
_SCOPES, _TRACE = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')
_OF_A_LAYER = ("attention", "feed_forward", "norm")
_WRAPPER = "typed.py"  # every product goes through it; who asks for the product says more
_PACKAGE = Path(__file__).parents[2]


def described(graph: GraphView, node: Node) -> Node:
    """The node, or where a rewrite of the tracer's dropped its notes, the nearest that still has some."""
    if _SCOPES in node.notes:
        return node
    above = [graph.producers[v] for v in node.inputs if v in graph.producers]
    below = [n for v in node.outputs for n in graph.consumers.get(v, [])]
    return next((n for n in (*above, *below) if _SCOPES in n.notes and n.part == node.part), node)


def module_of(node: Node, in_mask: bool = False) -> str:
    """The reference model's name of the module, such as "layers.1.attention".

    Args:
        node: of a graph that was traced with notes.
        in_mask: whether the node computes who sees whom, which the reference does outside its modules.
    """
    if in_mask:
        return VISIBLE
    scopes = ast.literal_eval(node.notes.get(_SCOPES, "[]"))
    scope = scopes[-2] if len(scopes) > 1 else ""
    kind, _, number = node.part.partition(".")
    if kind == "opening":
        return "embedding" if "embedding" in scope else ROWS
    if kind == "heads":
        return "softmax"
    # The graph's modules wrap the reference's once more (layouts share an attention) and hold a module per product.
    inner = [name for name, _ in itertools.groupby(p for p in scope.split(".") if p in _OF_A_LAYER)]
    return ".".join([f"layers.{number}", *inner])


def source_of(node: Node) -> str | None:
    """File, line and code, such as "graphs/pieces.py:138: score = ...": the innermost frame in this package."""
    frames = _FRAME.findall(node.notes.get(_TRACE, ""))
    for file, line, code in reversed(frames):
        path = Path(file)
        if path.is_relative_to(_PACKAGE) and path.name != _WRAPPER:
            return f"{path.relative_to(_PACKAGE.parent).as_posix()}:{line}: {code.strip()}"
    return None
