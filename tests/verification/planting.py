"""Faults planted into copies of bundles: weights and graphs changed, and the manifest sealed again.

That is what a converter leaves behind that rewrites a bundle and refreshes its hashes. Nodes and weights are
found by what they are: the tracer's names differ between its versions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from txl_export import TxlError
from txl_export.bundle import MANIFEST, Bundle, digest, file_entry
from txl_export.files import read_json, write_json
from txl_export.graphs import assembly
from txl_export.verification.bisection.judge import Judge

Change = Callable[[onnx.GraphProto], None]
Edit = Callable[[np.ndarray], np.ndarray]
ALL = slice(None)


def planted(bundle: Path, target: Path, *changes: Change) -> Path:
    """A sealed copy whose graphs were changed."""
    shutil.copytree(bundle, target)
    for spec in Bundle.open(target).manifest.graphs:
        model = onnx.load(target / spec.file, load_external_data=False)
        for change in changes:
            change(model.graph)
        onnx.save(model, target / spec.file)
    return sealed(target)


def sealed(bundle: Path) -> Path:
    """Write sizes, hashes and digest anew."""
    manifest = read_json(bundle / MANIFEST, TxlError)
    manifest["files"] = {name: file_entry(bundle / name) for name in manifest["files"]}
    write_json(bundle / MANIFEST, manifest | {"digest": digest(manifest)})
    return bundle


class Finder:
    """Finds what to change in a bundle's first graph."""

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle
        self.file = bundle / Bundle.open(bundle).manifest.graphs[0].file
        self.graph = onnx.load(self.file, load_external_data=False).graph

    def weight(self, part: str, shape: list[int]) -> str:
        """Name of the first initializer of that shape that a node of the part uses."""
        used = {v for n in self.nodes(part) for v in n.input}
        return next(t.name for t in self.graph.initializer if t.name in used and list(t.dims) == shape)

    def nodes(self, part: str, op: str | None = None) -> list[onnx.NodeProto]:
        told = [(n, {p.key: p.value for p in n.metadata_props}.get("txl.part")) for n in self.graph.node]
        return [n for n, p in told if p == part and op in (None, n.op_type)]

    def user(self, value: str) -> str:
        """Name of the first node that takes a value."""
        return next(n.name for n in self.graph.node if value in n.input)

    def edit(self, name: str, edit: Edit) -> Change:
        """Replace the numbers of an initializer, which then lies inside the graph."""
        data = edit(self._read(next(t for t in self.graph.initializer if t.name == name)).copy())
        new = numpy_helper.from_array(np.ascontiguousarray(data), name)

        def apply(graph: onnx.GraphProto) -> None:
            for t in graph.initializer:  # another graph may lack it, or use its name for something else
                if t.name == name and t.dims == new.dims:
                    t.CopyFrom(new)

        return apply

    def _read(self, tensor: onnx.TensorProto) -> np.ndarray:
        if not tensor.external_data:
            return numpy_helper.to_array(tensor)
        where = {e.key: e.value for e in tensor.external_data}
        count, offset = int(np.prod(tensor.dims)), int(where["offset"])
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.fromfile(self.bundle / where["location"], dtype, count, offset=offset).reshape(tensor.dims)

    def to_half(self, graph: onnx.GraphProto) -> None:
        """Convert a whole graph to float16 but for its inputs and outputs."""
        for t in graph.initializer:
            if t.data_type == onnx.TensorProto.FLOAT:
                t.CopyFrom(numpy_helper.from_array(self._read(t).astype(np.float16), t.name))
        floats = {v.name for v in (*graph.input, *graph.output) if v.type.tensor_type.elem_type == 1}
        rename(graph, {name: f"{name}_half" for name in floats})
        casts = [("Cast", i.name, f"{i.name}_half", 10) for i in graph.input if i.name in floats]
        backs = [("Cast", f"{o.name}_half", o.name, 1) for o in graph.output if o.name in floats]
        nodes = [helper.make_node(op, [a], [b], f"cast_{b}", to=to) for op, a, b, to in (*casts, *backs)]
        body = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes[: len(casts)], *body, *nodes[len(casts) :]])
        del graph.value_info[:]


def at(index: Any, change: float) -> Edit:
    """Add a number in some places."""

    def edit(array: np.ndarray) -> np.ndarray:
        array[index] += change
        return array

    return edit


def rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        for values in (node.input, node.output):
            for i, v in enumerate(values):
                values[i] = names.get(v, v)


def nameless(graph: onnx.GraphProto) -> None:
    """Number all nodes and inner values and drop all notes, as some tools do."""
    kept = {v.name for v in (*graph.input, *graph.output)}
    names = {v: f"t{i}_{k}" for i, n in enumerate(graph.node) for k, v in enumerate(n.output) if v not in kept}
    rename(graph, names)
    for i, node in enumerate(graph.node):
        node.name = f"n{i}"
        del node.metadata_props[:]
    del graph.value_info[:]


def set_node(name: str, op: str | None = None, inputs: dict[int, str] | None = None, **attributes: float) -> Change:
    """Change a node's operator, inputs or float attributes."""

    def apply(graph: onnx.GraphProto) -> None:
        node = next(n for n in graph.node if n.name == name)
        node.op_type = op or node.op_type
        for slot, value in (inputs or {}).items():
            node.input[slot] = value
        for a in node.attribute:
            if a.name in attributes:
                a.f = attributes[a.name]

    return apply


def insert_after(name: str, *ops: tuple[str, Any]) -> Change:
    """Put nodes behind a node: ("Cast", type), or another operator with a number as its second input."""

    def apply(graph: onnx.GraphProto) -> None:
        i = next(i for i, n in enumerate(graph.node) if n.name == name)
        value = graph.node[i].output[0]
        chain = [f"{value}_planted_{k}" for k in range(len(ops))] + [value]
        graph.node[i].output[0] = chain[0]
        for k, (op, number) in enumerate(ops):
            inputs = [chain[k]]
            if op != "Cast":
                inputs.append(f"{value}_number_{k}")
                graph.initializer.append(numpy_helper.from_array(np.asarray(number), inputs[-1]))
            attributes = {"to": number} if op == "Cast" else {}
            graph.node.insert(
                i + k + 1, helper.make_node(op, inputs, [chain[k + 1]], f"planted_{op}_{k}", **attributes)
            )

    return apply


HALF = (("Cast", onnx.TensorProto.FLOAT16), ("Cast", onnx.TensorProto.FLOAT))


@pytest.fixture(scope="module")
def one_trace() -> Iterator[None]:
    """Trace each graph of a model once, for its export and for all searches: tracing takes seconds.

    Other modules' models must not get these traces, so what is traced is named by the whole model, and it ends here.
    """
    trace, graph = assembly.trace, Judge.graph
    traced: dict[str, Any] = {}

    def trace_once(piece: Any, arguments: Any, outputs: Any, segment: Any, manifest: Any) -> Any:
        shapes = [(n, tuple(t.shape)) for n, t in (*piece.named_parameters(), *piece.named_buffers())]
        eps = [m.eps for m in piece.modules() if hasattr(m, "eps")]
        types = [v for m in piece.modules() for v in vars(m).values() if isinstance(v, torch.dtype)]
        rows = manifest.layout, manifest.mem_len, manifest.ring, manifest.guard
        model = manifest.config, manifest.dialect
        key = repr((type(piece), model, shapes, eps, types, arguments, outputs, segment, rows))
        if key not in traced:
            traced[key] = trace(piece, arguments, outputs, segment, manifest)
        return traced[key]

    def graph_once(self: Judge, spec: Any) -> Any:
        rest = {k: v for k, v in self.manifest.to_dict().items() if k not in ("files", "digest")}
        key = json.dumps([str(spec), id(self.checkpoint), rest])
        if key not in traced:
            traced[key] = graph(self, spec)
        return traced[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "trace", trace_once)
        patch.setattr(Judge, "graph", graph_once)
        yield
