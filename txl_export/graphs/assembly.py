"""From traced pieces to one graph per segment length and head: opening, N layers, closing."""

from __future__ import annotations

import ast
import re
from typing import Any

import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.tensor_adapters import TorchTensor
from torch import nn

from txl_export.bundle import GraphSpec, Manifest, TensorSpec
from txl_export.graphs.layouts import TRACED
from txl_export.graphs.model import GraphLayer, SegmentGraph
from txl_export.graphs.rows import share_rows
from txl_export.graphs.tracing import check_interface, trace
from txl_export.layouts import StateSpec
from txl_export.number_types import DOMAIN
from txl_export.segments import SegmentRange


class Assembler:
    """Builds the graphs of a bundle; pieces that several graphs share are traced once."""

    def __init__(self, module: SegmentGraph, manifest: Manifest, notes: bool = False) -> None:
        """Take what is traced.

        Args:
            module: the module whose pieces are traced.
            manifest: says which graphs to build.
            notes: keep what the tracer says of each node (module, line of code), which names files of this
                machine and has no place in a bundle.
        """
        self.module, self.manifest, self.notes = module, manifest, notes
        self._openings: dict[SegmentRange, ir.Model] = {}
        self._layers: dict[tuple[SegmentRange, Any], ir.Model] = {}  # by segment and the layer's types

    def build(self, graph: GraphSpec) -> ir.Model:
        """One graph, checked against the manifest; raises ExportError."""
        m = self.manifest
        inputs, outputs = m.inputs(graph), m.outputs(graph)
        canvas = _Canvas(inputs, self.notes, m.traits.opset)
        canvas.add(self._opening(graph.segment), "opening", self.module.opening)
        h, *shared, new_positions = canvas.results
        new_states: list[ir.Value] = []
        for n, layer in enumerate(self.module.layers):
            names = [s.input for s in m.states if s.layer == n]
            canvas.add(self._layer(graph.segment, n), f"layers.{n}", layer, [h, *shared, *map(canvas.value, names)])
            h, *new = canvas.results
            new_states += new
        head = self.module.heads[graph.head]
        targets = [canvas.value("targets")] if m.head(graph.head).takes_targets else []
        canvas.add(self._closing(graph), f"heads.{graph.head}", head, [h, *targets])
        model = canvas.model([*canvas.results, new_positions, *new_states], outputs)
        onnxscript.optimizer.optimize(model)
        share_rows(model.graph)
        _name_nodes(model.graph)
        check_interface(model, inputs, outputs, graph.segment)
        return model

    def _opening(self, segment: SegmentRange) -> ir.Model:
        if segment not in self._openings:
            m = self.manifest
            ids = _tensor("input_ids", "int64", "batch", "segment")
            places = [_tensor(name, "int64", "batch") for name in ("positions", *m.traits.inputs)]
            buffer = [_state(s) for s in m.states[:1] if m.traits.in_place]
            outputs = (self._h("h", segment), *self._shared(), _tensor("new_positions", "int64", "batch"))
            self._openings[segment] = self._trace(self.module.opening, (ids, *places, *buffer), outputs, segment)
        return self._openings[segment]

    def _layer(self, segment: SegmentRange, n: int) -> ir.Model:
        """The graph of layer n, traced once for all layers of its types."""
        piece: GraphLayer = self.module.layers[n]  # type: ignore[assignment]
        key = (segment, piece.types.key)
        if key not in self._layers:
            specs = [s for s in self.manifest.states if s.layer == n]
            new = [_tensor(s.output, s.dtype, "batch", *s.dims) for s in specs]
            arguments = (self._h("h", segment), self._shared(), [_state(s) for s in specs])
            self._layers[key] = self._trace(piece, arguments, (self._h("new_h", segment), *new), segment)
        return self._layers[key]

    def _closing(self, graph: GraphSpec) -> ir.Model:
        head = self.manifest.head(graph.head)
        rows: int | str = 1 if head.last_only else "segment"
        targets = _tensor("targets", "int64", "batch", rows) if head.takes_targets else None
        outputs = [_tensor(o.name, o.dtype, "batch", rows, *o.tail) for o in head.outputs]
        return self._trace(
            self.module.heads[graph.head], (self._h("h", graph.segment), targets), outputs, graph.segment
        )

    def _h(self, name: str, segment: SegmentRange) -> TensorSpec:
        m = self.manifest
        tokens = ("batch",) if m.traits.in_place and segment.hi == 1 else ("batch", "segment")
        return _tensor(name, m.policy.dtype("residual"), *tokens, m.config.d_model)

    def _shared(self) -> list[TensorSpec]:
        """What the opening gives to every layer, in its real types and sizes."""
        heads, dtype = self.manifest.config.n_head, self.manifest.policy.dtype("softmax")
        return [
            _tensor(
                s.name, dtype if s.dtype == "softmax" else s.dtype, *(heads if n == "heads" else n for n in s.shape)
            )
            for s in TRACED[self.manifest.layout].shared
        ]

    def _trace(self, piece: nn.Module, arguments: tuple, outputs, segment: SegmentRange) -> ir.Model:  # type: ignore[no-untyped-def, type-arg]
        return trace(piece, arguments, outputs, segment, self.manifest)


def _tensor(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def _state(spec: StateSpec) -> TensorSpec:
    return _tensor(spec.input, spec.dtype, "batch", *spec.dims)


class _Canvas:
    """A graph in the making: copies of pieces are added one after the other."""

    def __init__(self, inputs: list[TensorSpec], notes: bool, opset: int) -> None:
        self._notes = notes
        self._inputs = {
            t.name: ir.Value(name=t.name, shape=ir.Shape(t.shape), type=ir.TensorType(_onnx_type(t.dtype)))
            for t in inputs
        }
        self._graph = ir.Graph(list(self._inputs.values()), [], nodes=[], opset_imports={"": opset}, name="segment")
        self.results: list[ir.Value] = []

    def value(self, name: str) -> ir.Value:
        """An input of the graph."""
        return self._inputs[name]

    def add(self, piece: ir.Model, prefix: str, module: nn.Module, inputs: list[ir.Value] | None = None) -> None:
        """Copy a piece's nodes with the weights of `module`; `results` are then the piece's outputs.

        Args:
            piece: traced from a module of the same code.
            prefix: put before the names of nodes, values and weights; says which part of the model they are.
            module: gives the weights by the names that the piece's initializers have.
            inputs: what the piece's inputs are; None for the graph's inputs of the same names.
        """
        given = inputs or [self._inputs[v.name or ""] for v in piece.graph.inputs]
        copies: dict[ir.Value, ir.Value] = dict(zip(piece.graph.inputs, given, strict=True))
        weights = dict(module.named_parameters()) | dict(module.named_buffers())
        for name, value in piece.graph.initializers.items():
            tensor = TorchTensor(weights[name]) if name in weights else value.const_value
            copy = ir.Value(name=f"{prefix}.{name}", shape=value.shape, type=value.type, const_value=tensor)
            self._graph.register_initializer(copy)
            copies[value] = copy
        self._graph.opset_imports.update({d: v for d, v in piece.graph.opset_imports.items() if d == DOMAIN})
        for node in piece.graph:
            self._graph.append(_copy_node(node, prefix, copies, self._notes))
        self.results = [copies[v] for v in piece.graph.outputs]

    def model(self, outputs: list[ir.Value], specs: list[TensorSpec]) -> ir.Model:
        """The finished model, its outputs named as specified."""
        for value, spec in zip(outputs, specs, strict=True):
            value.name = spec.name
            self._graph.outputs.append(value)
        return ir.Model(self._graph, ir_version=10, producer_name="txl-export")


def _copy_node(node: ir.Node, prefix: str, copies: dict[ir.Value, ir.Value], notes: bool) -> ir.Node:
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else copies[v] for v in node.inputs],
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        version=node.version,
        name=f"{_module(node, prefix)}/{node.name}",
        metadata_props={"txl.part": prefix} | (dict(node.metadata_props) if notes else {}),
    )
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name, new.shape, new.type = f"{prefix}/{old.name}", old.shape, old.type
        copies[old] = new
    return copy


def _module(node: ir.Node, prefix: str) -> str:
    """Name of the module that a node was traced from, such as "layers.3.attention.positions": tools show it."""
    scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
    # Where the graph's modules wrap the reference's once more, they have the same name.
    inner = re.sub(r"\b(\w+)(?:\.\1\b)+", r"\1", scopes[-2]) if len(scopes) > 1 else ""
    return f"{prefix}.{inner}" if inner else prefix


def _name_nodes(graph: ir.Graph) -> None:
    """Nodes that the optimizer made get the module of what they were made of, or take their input from.

    Names are made unique: the optimizer counts from where the tracer did.
    """
    modules: dict[ir.Node | None, str] = {}
    taken: dict[str, int] = {}
    for node in graph:
        module, slash, name = (node.name or "").rpartition("/")
        if not slash:
            given = [modules[v.producer()] for v in node.inputs if v is not None and v.producer() in modules]
            module = next(iter(given), node.metadata_props.get("txl.part", "opening"))
        modules[node] = module
        full = f"{module}/{name}"
        taken[full] = taken.get(full, 0) + 1
        node.name = full if taken[full] == 1 else f"{full}.{taken[full]}"


def _onnx_type(dtype: str) -> ir.DataType:
    return _ONNX_TYPES[dtype]


_ONNX_TYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
}
