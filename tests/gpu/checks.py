"""What holds on every GPU backend; `test_backends.py` asks a genuine GPU, `tests/standin/test_gpu_checks.py` the other.

Exactness in fp32 has modules of its own there, which take the tests of the runtime as they are.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.bundles import ExportFixture, exported_ring, one_line
from tests.gpu.machine import Machine, OnDevice, crowded, judge_of
from tests.helpers import random_ids
from txl_export import doctor
from txl_export.backends import cuda
from txl_export.errors import DeviceError

LAYOUTS = ("ring", "kv", "hidden")
TOLERANCE = {"fp32": 1e-4, "fp16": 0.1}
B = 3
FEEDS = (1, 8, 3, 1, 1, 20, 8, 1, 13, 8, 1, 1, 5)


def exported_as(exported: ExportFixture, layout: str, precision: str = "fp32"):
    if layout == "ring":
        return exported_ring(exported, "stepping", precision)
    return exported("stepping", layout, ("1-64",), precision=precision)


def ids_of(made, feed: int, n: int, batch: int = B) -> np.ndarray:
    return random_ids(made.config, batch, n, seed=100 * n + feed)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_judge_past_the_wrap(machine: Machine, exported, layout, precision):
    made = exported_as(exported, layout, precision)
    ours, theirs = machine.engine(made.path).session(B), judge_of(made, B)
    for feed, n in enumerate(FEEDS):
        ids = ids_of(made, feed, n)
        found = ours.feed(ids)
        np.testing.assert_allclose(found, theirs.feed(ids), atol=TOLERANCE[precision], rtol=0)
    assert ours.positions.tolist() == [sum(FEEDS)] * B


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cuda_graphs_change_no_bit(machine, exported, layout, precision):
    made = exported_as(exported, layout, precision)
    graphs, direct = machine.engine(made.path).session(B), machine.direct(made.path).session(B)
    for feed, n in enumerate(FEEDS * 2):
        ids = ids_of(made, feed, n)
        np.testing.assert_array_equal(graphs.feed(ids), direct.feed(ids))
    for stream in range(B):
        for a, b in zip(graphs.memory_tensors(stream), direct.memory_tensors(stream), strict=True):
            assert all(np.array_equal(a[kind], b[kind]) for kind in a)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sessions_of_one_engine_take_turns(machine, exported, layout):
    made = exported_as(exported, layout)
    sizes = (1, B, 2)
    ours = [machine.engine(made.path).session(n) for n in sizes]
    theirs = [judge_of(made, n) for n in sizes]
    for turn in np.random.default_rng(0).integers(0, len(sizes), 30).tolist():
        ids = ids_of(made, turn, FEEDS[int(ours[turn].positions[0]) % len(FEEDS)], sizes[turn])
        np.testing.assert_allclose(ours[turn].feed(ids), theirs[turn].feed(ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_that_stay_on_the_gpu(machine, exported, layout):
    made = exported_as(exported, layout)
    ours, host = (machine.engine(made.path).session(B) for _ in range(2))
    for feed, n in enumerate(FEEDS):
        ids = ids_of(made, feed, n)
        expected = host.feed(ids)
        if feed % 2:
            out = OnDevice(np.zeros_like(expected))
            assert ours.feed(OnDevice(ids), out=out) is out
            found = out.numpy()
        else:
            found = ours.feed(OnDevice(ids)).numpy()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_room_leaves_other_sessions_alive(machine, exported, layout):
    made = exported_as(exported, layout)
    engine = machine.engine(made.path)
    ours, theirs = engine.session(B), judge_of(made, B)
    for feed, n in enumerate(FEEDS):
        ids = ids_of(made, feed, n)
        np.testing.assert_allclose(ours.feed(ids), theirs.feed(ids), atol=1e-4, rtol=0)
        if feed == len(FEEDS) // 2:
            # A GPU gives memory in pieces of megabytes: many small sessions may fit what is left, but not all of them.
            with crowded(4 << 20), pytest.raises(DeviceError) as e:
                kept = []
                while len(kept) < 10_000:
                    kept.append(engine.session(8))
                    kept[-1].feed(ids_of(made, 0, 1, 8))
            kept.clear()
            told = one_line(e.value)
            assert "bytes on the GPU" in told and "are free" in told
    assert engine.session(8).feed(ids_of(made, 0, 1, 8)).shape[0] == 8


def test_doctor_names_the_gpu(machine):
    found = doctor()
    assert [g.name for g in found.machine.gpus][:1] == [cuda.devices()[0].name]
    if machine.genuine:
        assert next(b for b in found.backends if b.name == machine.backend).works
