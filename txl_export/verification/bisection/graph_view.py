"""A graph as nodes, constants and parts, whether it comes from a bundle's file or from a fresh trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.errors import BundleError
from txl_export.files import inside

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

PART = "txl.part"
# Operators that change how a number is stored.
CASTS = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


@dataclass(frozen=True, eq=False)
class Node:
    """One node.

    Attributes:
        name: its name, or the name of its first output where it has none.
        op_type: the operator, with its domain where that is not ONNX's own.
        inputs: names of values; "" for an optional input that is left out.
        outputs: likewise.
        part: the part of the model: "opening", "layers.0", ..., "heads.log_probs".
        proto: the node itself.
        notes: its metadata.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    part: str
    proto: Any = field(repr=False)
    notes: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def value(self) -> str:
        """Name of the first output."""
        return self.outputs[0]


class GraphView:
    """Nodes in topological order, and the constants that they use."""

    def __init__(
        self,
        protos: Sequence[onnx.NodeProto],
        constants: Mapping[str, Callable[[], np.ndarray]],
        parts: Sequence[str],
        opsets: Mapping[str, int],
        outputs: Iterable[str],
        types: Mapping[str, np.dtype] | None = None,
    ) -> None:
        """Sort nodes into parts.

        Args:
            protos: nodes in topological order.
            constants: name and reader of each initializer.
            parts: the parts in the order in which they run.
            opsets: domain to version.
            outputs: names of the graph's outputs.
            types: of values, where they are known.
        """
        self.types = types or {}
        self._constants, self.parts, self.opsets = constants, parts, dict(opsets)
        self.outputs = tuple(outputs)
        self.nodes = _nodes(protos, parts)
        self.producers = {v: node for node in self.nodes for v in node.outputs}
        self._read: dict[str, np.ndarray | None] = {}

    def constant(self, name: str) -> np.ndarray | None:
        """An initializer, or what a node `Constant` gives; None for anything else."""
        if name not in self._read:
            node = self.producers.get(name)
            if name in self._constants:
                self._read[name] = self._constants[name]()
            else:
                self._read[name] = _constant_of(node) if node and node.op_type == "Constant" else None
        return self._read[name]

    def is_constant(self, name: str) -> bool:
        """Whether `constant` would give something, without reading it."""
        return name in self._constants or (name in self.producers and self.producers[name].op_type == "Constant")

    def of(self, *parts: str) -> list[Node]:
        """The nodes of some parts, in topological order."""
        return [n for n in self.nodes if n.part in parts]

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """Which nodes use a value."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for v in node.inputs:
                found.setdefault(v, []).append(node)
        return found

    def above(self, value: str) -> set[str]:
        """All values that a value is computed from, itself included."""
        seen, stack = set(), [value]
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack += self.producers[name].inputs if name in self.producers else ()
        return seen


def _nodes(protos: Sequence[onnx.NodeProto], parts: Sequence[str]) -> list[Node]:
    rank = {p: i for i, p in enumerate(parts)}
    of_value: dict[str, str] = {}
    nodes = []
    for proto in protos:
        notes = {p.key: p.value for p in proto.metadata_props}
        outputs = tuple(v for v in proto.output if v)
        part = _part(notes, (proto.name, *outputs), rank) or max(
            (of_value[v] for v in proto.input if v in of_value), key=rank.__getitem__, default=parts[0]
        )
        op_type = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
        name = proto.name or (outputs[0] if outputs else op_type)
        nodes.append(Node(name, op_type, tuple(proto.input), outputs, part, proto, notes))
        of_value |= dict.fromkeys(outputs, part)
    return nodes


def _part(notes: Mapping[str, str], names: Iterable[str], rank: Mapping[str, int]) -> str | None:
    """What the exporter wrote down, or the prefix of a name; tools that rewrite graphs drop the one or the other."""
    told = [notes.get(PART, ""), *(name.partition("/")[0] for name in names)]
    return next((t for t in told if t in rank), None)


def _constant_of(node: Node) -> np.ndarray | None:
    from onnx import numpy_helper

    tensor = next((a.t for a in node.proto.attribute if a.name == "value"), None)
    return None if tensor is None else numpy_helper.to_array(tensor)


def from_file(path: Path, parts: Sequence[str]) -> tuple[GraphView, onnx.ModelProto]:
    """A bundle's graph; weights in other files are read when asked for.

    Raises:
        BundleError: no ONNX graph, or weights outside the bundle.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as e:  # protobuf's errors differ between its implementations
        raise BundleError(f"{path} is no readable ONNX graph ({type(e).__name__}): export again") from None
    readers = {t.name: _reader(t, path.parent) for t in model.graph.initializer}
    opsets = {o.domain: o.version for o in model.opset_import}
    return GraphView(model.graph.node, readers, parts, opsets, (o.name for o in model.graph.output)), model


def low_precision(model: onnx.ModelProto) -> tuple[int, int]:
    """How many floating point constants have fewer than 32 bits, and how many there are."""
    from onnx import helper

    types = [helper.tensor_dtype_to_np_dtype(t.data_type) for t in model.graph.initializer]
    floats = [t for t in types if t.kind not in "iubSUO"]
    return sum(t.itemsize < 4 for t in floats), len(floats)


def _reader(tensor: onnx.TensorProto, folder: Path) -> Callable[[], np.ndarray]:
    from onnx import helper, numpy_helper

    if not tensor.external_data:
        return lambda: numpy_helper.to_array(tensor)
    where = {e.key: e.value for e in tensor.external_data}
    file = inside(folder, where.get("location"), BundleError)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return lambda: np.memmap(file, dtype, "r", int(where.get("offset", 0)), tuple(tensor.dims))


def from_trace(model: ir.Model, parts: Sequence[str]) -> GraphView:
    """A graph that was traced just now; its weights stay where they are."""
    import onnx_ir as ir

    def reader(value: ir.Value) -> Callable[[], np.ndarray]:
        return lambda: value.const_value.numpy()  # type: ignore[union-attr]

    constants = {name: reader(value) for name, value in model.graph.initializers.items()}
    protos = [ir.to_proto(node) for node in model.graph]
    values = [v for node in model.graph for v in node.outputs]
    types = {v.name or "": v.dtype.numpy() for v in values if v.dtype is not None}
    return GraphView(protos, constants, parts, model.opset_imports, (v.name or "" for v in model.graph.outputs), types)
