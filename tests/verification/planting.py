"""Faults planted into copies of bundles: weights and graphs changed, and the manifest sealed again.

That is what a converter leaves behind that rewrites a bundle and refreshes its hashes.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from txl_export import TxlError
from txl_export.bundle import MANIFEST, Bundle, digest, file_entry
from txl_export.files import read_json, write_json
from txl_export.graphs import assembly

Change = Callable[[onnx.GraphProto], None]


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


def read(bundle: Path, tensor: onnx.TensorProto) -> np.ndarray:
    """An initializer's numbers, wherever they lie."""
    if not tensor.external_data:
        return numpy_helper.to_array(tensor)
    where = {e.key: e.value for e in tensor.external_data}
    return np.fromfile(
        bundle / where["location"], np.float32, int(np.prod(tensor.dims)), offset=int(where["offset"])
    ).reshape(tensor.dims)


def set_initializer(bundle: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Replace the numbers of an initializer, which then lies inside the graph."""

    def apply(graph: onnx.GraphProto) -> None:
        old = next(t for t in graph.initializer if t.name == name)
        new = numpy_helper.from_array(np.ascontiguousarray(change(read(bundle, old).copy())), name)
        old.CopyFrom(new)

    return apply


def node_of(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    return next(n for n in graph.node if n.name == name)


def insert_after(name: str, *ops: tuple[str, dict]) -> Change:
    """Put nodes behind a node: what took its output takes theirs. ("Mul", {"by": 2.0}) multiplies by a number."""

    def apply(graph: onnx.GraphProto) -> None:
        at = next(i for i, n in enumerate(graph.node) if n.name == name)
        value, given = graph.node[at].output[0], f"{graph.node[at].output[0]}_given"
        graph.node[at].output[0] = given
        for i, (op, attributes) in enumerate(ops, 1):
            last = value if i == len(ops) else f"{value}_planted_{i}"
            inputs = [given]
            if "by" in attributes:
                inputs.append(f"{value}_by_{i}")
                graph.initializer.append(numpy_helper.from_array(np.float32(attributes["by"]), inputs[-1]))
                attributes = {}
            graph.node.insert(at + i, helper.make_node(op, inputs, [last], f"planted_{op}_{i}", **attributes))
            given = last

    return apply


@pytest.fixture(scope="session")
def one_trace() -> Iterator[None]:
    """Trace each piece once, for exports and for bisections: it depends on arguments and on the model's shape."""
    original = assembly.trace
    patch = pytest.MonkeyPatch()

    @functools.cache
    def cached(key: str) -> list:
        return []

    def trace(piece, arguments, outputs, segment, mem_len):  # type: ignore[no-untyped-def]
        shapes = [(n, tuple(t.shape)) for n, t in (*piece.named_parameters(), *piece.named_buffers())]
        eps = [m.eps for m in piece.modules() if hasattr(m, "eps")]
        kept = cached(repr((type(piece), vars(piece).get("window"), shapes, eps, arguments, outputs, segment, mem_len)))
        if not kept:
            kept.append(original(piece, arguments, outputs, segment, mem_len))
        return kept[0]

    patch.setattr(assembly, "trace", trace)
    yield
    patch.undo()
