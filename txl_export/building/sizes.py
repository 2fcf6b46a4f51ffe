"""Sizes that a package wants as numbers where the graph leaves them to a session: rows that are written in place.

TensorRT's parser takes a TensorScatter of a buffer of known length only, so an engine has the bundle's largest M.
"""

from __future__ import annotations

from collections.abc import Mapping

from txl_export.bundle import Manifest
from txl_export.errors import missing_extra

Sizes = Mapping[str, int]


def fixed_sizes(manifest: Manifest) -> dict[str, int]:
    """The symbolic dimensions that engines of a bundle have as numbers."""
    return {"rows": manifest.rows} if manifest.traits.in_place else {}


def graph_with_sizes(graph: bytes, sizes: Sizes) -> bytes:
    """A graph whose inputs, outputs and inner values have those dimensions as numbers.

    Args:
        graph: a serialized ONNX model, its weights in other files or not.
        sizes: numbers by the names of dimensions.

    Returns:
        the same without sizes, or where it is no model; else a model in its place.

    Raises:
        EnvironmentMismatch: without the package onnx.
    """
    if not sizes:
        return graph
    try:
        import onnx
    except ImportError:
        raise missing_extra("onnx", "export", "an engine of a memory that is written in place") from None
    try:
        model = onnx.load_model_from_string(graph)
    except Exception:  # protobuf's errors have no public base class; the parser says what is wrong with the file
        return graph
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return bytes(model.SerializeToString())
