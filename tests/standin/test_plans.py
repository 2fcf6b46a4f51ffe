"""Bundles with engines of the stand-in: a genuine manifest, and the numbers of backend `onnxruntime`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bundles import ExportFixture, exported_ring
from tests.helpers import random_ids
from tests.standin.machine import Machine
from tests.standin.plans import with_engines
from tests.standin.queues import ORDERS
from txl_export import Engine
from txl_export.bundle import Bundle, GraphSpec

B = 2


@pytest.fixture(params=["kv", "hidden", "ring"])
def source(request: pytest.FixtureRequest, exported: ExportFixture) -> Path:
    """Bundles that other tests export too."""
    if request.param == "ring":
        return exported_ring(exported).path
    return exported({"kv": "stepping", "hidden": "plain"}[request.param], request.param, ("1-8",)).path


@pytest.mark.parametrize("package", ["tensorrt", "tensorrt-rtx"])
def test_engines_are_complete_and_load(gpu, exported, tmp_path, package):
    source = exported_ring(exported).path
    made = with_engines(source, tmp_path / "copy", package)
    opened = Bundle.open(tmp_path / "copy")
    assert opened.manifest == made.manifest
    assert [(e.package, e.batch) for e in opened.manifest.engines] == [(package, (1, 2, 8))] * 3
    assert Engine.load(opened, backend=package).backend == package and gpu.calls["deserialize_cuda_engine"] == 3
    assert not Bundle.open(source).manifest.engines and not gpu.said


def given(bundle: Bundle, graph: GraphSpec, ids: np.ndarray) -> dict[str, np.ndarray]:
    """What streams at their start give a graph, by input."""
    sizes = {"batch": B, "segment": ids.shape[1], "rows": bundle.manifest.rows}
    made = {t.name: np.zeros(t.sized(sizes).shape, t.dtype) for t in bundle.manifest.inputs(graph)}
    return made | {"input_ids": ids} | ({"window": np.full(B, 2**40)} if "window" in made else {})


def placed(machine: Machine, bundle: Bundle, graph: GraphSpec, inputs: dict[str, np.ndarray]) -> dict[str, int]:
    """Inputs on the device, and places for outputs."""
    m, places = bundle.manifest, {name: machine.put(array) for name, array in inputs.items()}
    sizes = {"batch": B, "segment": inputs["input_ids"].shape[1], "rows": m.rows}
    for t in m.outputs(graph):
        nbytes = int(np.prod(t.sized(sizes).shape)) * np.dtype(t.dtype).itemsize
        places[t.name] = places[m.aliases[t.name]] if t.name in m.aliases else machine.device(nbytes)
    return places


@pytest.mark.parametrize("order", ORDERS)
def test_an_engine_gives_the_numbers_of_onnx_runtime(gpu, source, tmp_path, order):
    gpu.queues.order = order
    machine, bundle = Machine(gpu), with_engines(source, tmp_path / "copy")
    m, built = bundle.manifest, bundle.manifest.engines[-1]
    graph = next(g for g in m.graphs if g.file == built.graph)
    ids = random_ids(m.config, B, graph.segment.hi)
    inputs = given(bundle, graph, ids)
    places = placed(machine, bundle, graph, inputs)
    runtime = gpu.trt.Runtime(gpu.trt.Logger())
    engine = runtime.deserialize_cuda_engine((bundle.path / built.file).read_bytes())
    context = machine.context(engine, {name: a.shape for name, a in inputs.items()}, places)
    assert context.execute_async_v3(machine.stream), gpu.said
    expected = Engine.load(source, backend="onnxruntime", threads=1).session(B).feed(ids)
    np.testing.assert_allclose(machine.get(places["log_probs"], expected), expected, atol=1e-5, rtol=0)
    assert machine.get(places["new_positions"], np.zeros(B, np.int64)).tolist() == [ids.shape[1]] * B
