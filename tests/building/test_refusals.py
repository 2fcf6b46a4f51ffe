"""What the package refuses, asked of the real one: each is a line that names the place and the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.building.conftest import contents, needs_rtx
from tests.bundles import one_line
from txl_export.building import build, network
from txl_export.building.process import BuilderProcess
from txl_export.bundle import Bundle, Manifest, digest, file_entry
from txl_export.errors import BuildError, EnvironmentMismatch, InputError
from txl_export.files import read_json, write_json

pytestmark = needs_rtx

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
NODE = "layers.1.attention/node"
OPTIONS = {
    "profiles": {}, "capabilities": [], "tf32": False, "opt_level": None, "workspace": None, "timing_cache": None,
}  # fmt: skip


def value(name: str, shape: list[int | str], kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def scatter(path: Path, mode: str, shape: list[int | str]) -> Path:
    axis = len(shape) - 2
    update = [*shape[:axis], 1, shape[-1]]
    node = helper.make_node("TensorScatter", ["past", "new", "at"], ["out"], name=NODE, mode=mode, axis=axis)
    inputs = [value("past", shape), value("new", update), value("at", ["batch"], INT64)]
    return save(path, node, inputs, value("out", shape))


def product(path: Path, weights: type[np.floating] = np.float32) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name=NODE)
    return save(path, node, [value("x", ["batch", 4])], value("y", ["batch", 3]), {"w": np.ones((4, 3), weights)})


def save(path: Path, node: onnx.NodeProto, inputs: list, output: onnx.ValueInfoProto, weights=()) -> Path:
    tensors = [numpy_helper.from_array(a, name) for name, a in dict(weights).items()]
    graph = helper.make_graph([node], "g", inputs, [output], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10), path)
    return path


def refused(call, *arguments) -> str:
    with pytest.raises(BuildError) as e:
        call(*arguments)
    return one_line(e.value)


def built(process: BuilderProcess, path: Path, **options: object) -> str:
    """Why it does not build."""
    return refused(process.build, OPTIONS | options, path.with_suffix(".engine"), lambda *_: None, path.name)


@pytest.mark.parametrize(
    "mode, shape, says",
    [("circular", ["batch", 2, 8, 4], "Only linear mode"), ("linear", ["batch", 8, 4], "required to be 4D, got 3D")],
)
def test_updates_that_it_cannot_do(process, tmp_path, mode, shape, says):
    told = refused(process.parse, scatter(tmp_path / "g.onnx", mode, shape))
    assert says in told
    assert f"node {NODE} (TensorScatter) of module layers.1.attention" in told
    assert "while reading g.onnx" in told


def test_operators_that_it_does_not_have(process, tmp_path):
    node = helper.make_node("Compress", ["x", "c"], ["y"], name=NODE)
    path = save(tmp_path / "g.onnx", node, [value("x", ["batch", 4])], value("y", [2, "k"], INT64))
    assert f"node {NODE} (Compress)" in refused(process.parse, path)
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], name=NODE, reduction="add")
    inputs = [value("x", ["batch", 4]), value("i", [1, 2], INT64), value("u", [1])]
    told = refused(process.parse, save(tmp_path / "g.onnx", node, inputs, value("y", ["batch", 4])))
    assert "ScatterND with reduction is not supported" in told


def test_operands_of_two_types(process, tmp_path):
    told = refused(process.parse, product(tmp_path / "g.onnx", np.float16))
    assert f"node {NODE} (MatMul) of module layers.1.attention" in told
    assert "`A` is of type Float and `B` is of type Half" in told


def test_files_that_are_no_graphs(process, tmp_path):
    (tmp_path / "g.onnx").write_bytes(b"junk" * 20)
    assert "Failed to parse the ONNX model" in refused(process.parse, tmp_path / "g.onnx")
    with pytest.raises(EnvironmentMismatch, match="No such file"):
        process.parse(tmp_path / "none" / "g.onnx")


def test_updates_in_place_are_seen(process, tmp_path):
    found = process.parse(scatter(tmp_path / "g.onnx", "linear", ["batch", 2, 8, 4]))
    assert found.aliases == {"out": "past"} and found.products == {}


def test_products_and_weights_are_counted(process, tmp_path):
    found = process.parse(product(tmp_path / "g.onnx"))
    assert found.products == {"fp32": 1} and found.weight_bytes == 48


@pytest.mark.parametrize(
    "profiles, says",
    [
        ({"x": [[4, 4], [2, 4], [8, 4]]}, "MIN<=OPT<=MAX"),  # the index of the profile is -1
        ({"x": [[1, 5], [1, 5], [8, 5]]}, "profile has min=5, opt=5, max=5 but tensor has 4"),
        ({}, "missing dimensions in profile 0"),
    ],
)
def test_profiles_that_it_refuses(process, tmp_path, profiles, says):
    path = product(tmp_path / "g.onnx")
    process.parse(path)
    told = built(process, path, profiles=profiles)
    assert says in told and "while building g.onnx" in told


GOOD = {"x": [[1, 4], [1, 4], [8, 4]]}


def test_no_plan_for_turing_in_fp32(process, tmp_path):
    path = product(tmp_path / "g.onnx")
    process.parse(path)
    told = built(process, path, profiles=GOOD, capabilities=["sm75"])
    assert told.endswith("leave out sm75, or export in fp16") and "Turing" in told


def test_a_refusal_is_no_end(process, tmp_path):
    """Each names its own cause, and what is right after it builds."""
    path = product(tmp_path / "g.onnx")
    process.parse(path)
    assert "min=5" in built(process, path, profiles={"x": [[1, 5], [1, 5], [8, 5]]})
    assert "min=6" in built(process, path, profiles={"x": [[1, 6], [1, 6], [8, 6]]})
    plan = tmp_path / "g.engine"
    assert process.build(OPTIONS | {"profiles": GOOD}, plan, lambda *_: None, "g") > 0
    assert plan.stat().st_size > 1000


# Whole bundles


def swap_graph(folder: Path, path: Path) -> None:
    """Put another graph in the place of the first, and the manifest in order with it."""
    manifest = read_json(folder / "manifest.json", BuildError)
    name = manifest["graphs"][0]["file"]
    (folder / name).write_bytes(path.read_bytes())
    manifest["files"][name] = file_entry(folder / name)
    write_json(folder / "manifest.json", manifest | {"digest": digest(manifest)})


def test_a_graph_that_is_not_the_manifests_is_not_built(folder, tmp_path):
    swap_graph(folder, product(tmp_path / "g.onnx"))
    before = contents(folder)
    told = refused(build, folder, "tensorrt-rtx")
    assert told.startswith("log_probs.L1-8.onnx in tensorrt-rtx: input input_ids is absent")
    assert contents(folder) == before


def test_a_failure_keeps_nothing_of_the_engines_before_it(three, monkeypatch):
    """The third plan is found too large."""
    before, sizes = contents(three), iter([0, 0, 1 << 40])
    real = network.check_size
    monkeypatch.setattr("txl_export.building.run.check_size", lambda _, *rest: real(next(sizes), *rest))
    told = refused(build, three, "tensorrt-rtx")
    assert "log_probs.L1-8.onnx" in told and "1,099,511,627,776 bytes" in told
    assert contents(three) == before


def test_the_size_is_that_of_the_plan(folder, monkeypatch):
    monkeypatch.setattr(network, "SPARE_BYTES", 0)
    assert "the engine has" in refused(build, folder, "tensorrt-rtx")


def test_capabilities_that_the_package_does_not_know(folder):
    with pytest.raises(InputError) as e:
        build(folder, "tensorrt-rtx", compute_capabilities=("sm80", "sm90"))
    assert "does not build for sm90: it knows sm75, sm80" in one_line(e.value)


def test_profiles_of_other_inputs_are_checked_before_the_build(folder, monkeypatch):
    """TensorRT itself builds where the batch of ids and of memory disagree."""
    real = Manifest.inputs
    calls: list[int] = []

    def inputs(self, graph):
        calls.append(0)
        found = real(self, graph)
        if len(calls) == 1:  # what profiles are made of
            found[2] = type(found[2])(found[2].name, found[2].dtype, (3, *found[2].shape[1:]))
        return found

    opened = Bundle.open(folder)
    monkeypatch.setattr("txl_export.building.run.Bundle.open", lambda *_, **__: opened)
    monkeypatch.setattr(Manifest, "inputs", inputs)
    assert "profiles disagree on batch: input_ids has 1:1:8, key_00 3:3:3" in refused(build, folder, "tensorrt-rtx")
