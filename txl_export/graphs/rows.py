"""Rows of a weight as a weight of its own, whose bytes are the other's: runtimes copy what they slice at loading."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor

_FIRST_AXIS, _ONE_BY_ONE = (None, 0), (None, 1)  # None: left out


def share_rows(graph: ir.Graph) -> None:
    """Replace every `Slice` of consecutive rows of a weight by an initializer that shares the weight's memory."""
    for node in list(graph):
        found = _rows(node)
        if found is None:
            continue
        name, tensor = found
        inputs = [v for v in node.inputs if v is not None]
        if name not in graph.initializers:
            shape, dtype = ir.Shape(tensor.shape), ir.TensorType(tensor.dtype)
            graph.register_initializer(ir.Value(name=name, shape=shape, type=dtype, const_value=tensor))
        ir.convenience.replace_all_uses_with(node.outputs[0], graph.initializers[name])
        graph.remove(node, safe=True)
        for unused in (v.name for v in inputs if not v.uses()):
            graph.initializers.pop(unused or "", None)


def _rows(node: ir.Node) -> tuple[str, TorchTensor] | None:
    """Name and numbers of the rows that a node slices off a weight; None for any other node."""
    if node.op_type != "Slice" or node.inputs[0] is None or node.outputs[0].is_graph_output():
        return None
    source, weight = node.inputs[0], node.inputs[0].const_value
    start, end, axis, step = (_number(node, i) for i in range(1, 5))
    if not isinstance(weight, TorchTensor) or start is None or end is None:
        return None
    if axis not in _FIRST_AXIS or step not in _ONE_BY_ONE:
        return None
    rows = weight.raw[start:end]
    return f"{source.name}.{start}-{start + len(rows)}", TorchTensor(rows)


def _number(node: ir.Node, i: int) -> int | None:
    """The one number of a constant input; None where it is no constant, of several numbers, or not there."""
    value = node.inputs[i] if i < len(node.inputs) else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return int(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None
