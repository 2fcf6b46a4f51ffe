"""Tiny graphs for the rules: one that doubles, and one that writes a row in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.standin.plan_files import VERSIONS, Plan

WIDTH = 64  # numbers of a row: 256 bytes, so that every row of a buffer is aligned


def doubling(folder: Path) -> Plan:
    """x [batch, WIDTH] -> y = x + x, for 1 to 4 rows; float32."""
    x, y = (_float(name, "batch", WIDTH) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", [x], [y])
    return _plan(graph, folder, {"x": [(1, WIDTH), (2, WIDTH), (4, WIDTH)]})


def in_place(folder: Path) -> Plan:
    """Row `at` [batch] of s [batch, 1, 3, WIDTH] becomes x [batch, 1, 1, WIDTH]: new_s is s, written in place."""
    cache, row = ("batch", 1, "rows", WIDTH), ("batch", 1, 1, WIDTH)
    at = helper.make_tensor_value_info("at", TensorProto.INT64, ["batch"])
    inputs, new = [_float("s", *cache), _float("x", *row), at], _float("new_s", *cache)
    node = helper.make_node("TensorScatter", ["s", "x", "at"], ["new_s"], mode="linear", axis=2)
    graph = helper.make_graph([node], "in_place", inputs, [new])
    profiles = {"s": (1, 3, WIDTH), "x": (1, 1, WIDTH), "at": ()}
    made = _plan(graph, folder, {name: [(n, *rest) for n in (1, 1, 4)] for name, rest in profiles.items()})
    return replace(made, sizes={"rows": 3}, aliases={"new_s": "s"})


def _float(name: str, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _plan(graph: onnx.GraphProto, folder: Path, profiles: dict[str, list[tuple[int, ...]]]) -> Plan:
    file = folder / f"{graph.name}.onnx"
    opsets = [helper.make_opsetid("", 24)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(file))
    return Plan(str(file), "tensorrt", VERSIONS["tensorrt"], None, {}, profiles, {})
