"""Tracing a module with `torch.onnx.export` (dynamo), its symbolic dimensions named and asserted."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from txl_export.bundle import Manifest, TensorSpec
from txl_export.errors import ExportError
from txl_export.segments import SegmentRange

MAX_BATCH = 4096


def trace(
    module: nn.Module,
    arguments: Sequence[Any],
    outputs: Sequence[TensorSpec],
    segment: SegmentRange,
    manifest: Manifest,
) -> ir.Model:
    """Trace a piece; what the specs call symbolic must come out symbolic.

    Args:
        module: the piece.
        arguments: as its `forward` takes them, with a TensorSpec for each tensor; dimensions are numbers,
            "batch", "segment", "keys" (M + segment) or "rows" (of a memory that is written in place).
        outputs: specs of its outputs, flat.
        segment: lengths that "segment" stands for.
        manifest: M, and the rows that there are at most.

    Raises:
        ExportError: a dimension was specialised, or a type or shape is not the spec's.
    """
    length = segment.lo if segment.fixed else max(2, segment.hi - 1)
    mem_len = manifest.mem_len
    sizes = {"batch": 3, "segment": length, "keys": mem_len + length, "rows": manifest.rows - 2}
    dims: dict[str, Any] = {"batch": torch.export.Dim("batch", min=1, max=MAX_BATCH)}
    if not segment.fixed:
        dims["segment"] = torch.export.Dim("segment", min=segment.lo, max=segment.hi)
        dims["keys"] = dims["segment"] + mem_len if mem_len else dims["segment"]
    if manifest.traits.in_place:  # traced with fewer rows than most: a table that is cut by 0 rows would stay whole
        dims["rows"] = torch.export.Dim("rows", min=manifest.guard + 1, max=manifest.rows)
    inputs = list(_flat(arguments))
    with _quiet(), _same_operators(), torch.no_grad():
        program = torch.onnx.export(
            module,
            _mapped(arguments, lambda spec: _example(spec, sizes)),
            dynamic_shapes=_mapped(arguments, lambda spec: _dynamic(spec, dims)),
            input_names=[t.name for t in inputs],
            output_names=[t.name for t in outputs],
            dynamo=True,
            opset_version=manifest.traits.opset,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    traced: ir.Model = program.model
    _name_dims(traced, inputs, mem_len)
    check_interface(traced, inputs, outputs, segment)
    return traced


def _flat(arguments: Any) -> Iterator[TensorSpec]:
    if isinstance(arguments, TensorSpec):
        yield arguments
    elif arguments is not None:
        for a in arguments:
            yield from _flat(a)


def _mapped(arguments: Any, f: Any) -> Any:
    if isinstance(arguments, TensorSpec):
        return f(arguments)
    if arguments is None:
        return None
    return type(arguments)(_mapped(a, f) for a in arguments)


def _example(spec: TensorSpec, sizes: dict[str, int]) -> Tensor:
    shape = [sizes[n] if isinstance(n, str) else n for n in spec.shape]
    return torch.zeros(shape, dtype=getattr(torch, spec.dtype))


def _dynamic(spec: TensorSpec, dims: dict[str, Any]) -> dict[int, Any]:
    return {axis: dims[n] for axis, n in enumerate(spec.shape) if isinstance(n, str) and n in dims}


def _name_dims(traced: ir.Model, inputs: list[TensorSpec], mem_len: int) -> None:
    """Give the symbolic dimensions their names in the contract; the tracer calls them s0, s70, s70 + M, ..."""
    names: dict[str, str] = {}
    for value, spec in zip(traced.graph.inputs, inputs, strict=True):
        for found, expected in zip(value.shape or (), spec.shape, strict=True):
            if isinstance(expected, str) and not isinstance(found, int):
                names.setdefault(str(found), expected)
    names |= {f"{symbol} + {mem_len}": "keys" for symbol, name in names.items() if name == "segment"}
    values = [*traced.graph.inputs, *(v for node in traced.graph for v in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([n if isinstance(n, int) else names.get(str(n)) for n in value.shape])


def check_interface(
    traced: ir.Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], segment: SegmentRange
) -> None:
    """Names, types and shapes are the specs'; raises ExportError for the first that is not."""
    for kind, values, specs in (
        ("input", traced.graph.inputs, inputs),
        ("output", traced.graph.outputs, outputs),
    ):
        if len(values) != len(specs):
            raise ExportError(f"segment {segment}: traced {len(values)} {kind}s, expected {len(specs)}")
        for value, spec in zip(values, specs, strict=True):
            shape = [n if isinstance(n, int) else n.value for n in value.shape or ()]
            dtype = value.dtype.numpy().name if value.dtype else None
            if (value.name, dtype) != (spec.name, spec.dtype) or not _same_shape(shape, spec, segment):
                raise ExportError(
                    f"segment {segment}: {kind} {value.name} was traced as {dtype} {shape}, "
                    f"expected {spec.name} {spec.dtype} {list(spec.shape)}"
                )


def _same_shape(found: Sequence[int | str | None], spec: TensorSpec, segment: SegmentRange) -> bool:
    """Equal, but for "segment" and "keys" being numbers where the segment is fixed, and keys the segment at M = 0."""
    if len(found) != len(spec.shape):
        return False
    return all(
        isinstance(f, int) if segment.fixed and e in ("segment", "keys") else f == e or (f, e) == ("segment", "keys")
        for f, e in zip(found, spec.shape, strict=True)
    )


_operators: Any = None  # what the exporter found at the first call


@contextlib.contextmanager
def _same_operators() -> Iterator[None]:
    """Let the exporter collect the operators that it can translate once per process: a third of a small export.

    They are what is installed; where a version of the packages has no such place, each call collects them anew.
    """
    global _operators
    try:
        apis: Any = importlib.import_module("torch.onnx._internal.exporter._registration").onnxscript_apis
        collect = apis.get_torchlib_ops
    except (ImportError, AttributeError):
        yield
        return
    _operators = collect() if _operators is None else _operators
    apis.get_torchlib_ops = lambda: _operators
    try:
        yield
    finally:
        apis.get_torchlib_ops = collect


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tracer's notes about unrelated packages away from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
