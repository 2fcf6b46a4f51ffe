"""TensorRT's rules of plans and engines on the stand-in."""

from __future__ import annotations

import dataclasses

import pytest

from tests.standin.gpu import Gpu
from tests.standin.graphs import WIDTH, doubling, in_place
from tests.standin.machine import Machine
from tests.standin.plan_files import VERSIONS
from txl_export.backends.cuda import Device


@pytest.fixture
def m(gpu: Gpu) -> Machine:
    return Machine(gpu)


def test_an_engine_tells_what_it_takes_and_gives(m, tmp_path):
    engine, trt = m.engine(in_place(tmp_path)), m.gpu.trt
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    assert names == ["s", "x", "at", "new_s"]
    assert [engine.get_tensor_mode(n).name for n in names] == ["INPUT"] * 3 + ["OUTPUT"]
    assert engine.get_tensor_dtype("at") == trt.DataType.INT64
    assert engine.get_tensor_shape("s") == (-1, 1, 3, WIDTH)
    assert engine.get_aliased_input_tensor("new_s") == "s" and engine.get_aliased_input_tensor("s") is None
    assert [tuple(shape) for shape in engine.get_tensor_profile_shape("at", 0)] == [(1,), (1,), (4,)]


def test_what_is_no_plan_for_this_gpu_and_version_gives_nothing(m, tmp_path):
    plan = doubling(tmp_path)
    good = plan.to_bytes()
    flipped = bytes([*good[:-1], good[-1] ^ 1])
    others = ({"version": "11.3.0.1"}, {"package": "tensorrt-rtx"}, {"gpu": ("NVIDIA T4", "sm75")})
    damaged = [b"", b"garbage", good[:40], flipped, *(dataclasses.replace(plan, **o).to_bytes() for o in others)]
    trt = m.gpu.trt
    runtime = trt.Runtime(trt.Logger())
    for i, odd in enumerate(damaged):
        assert runtime.deserialize_cuda_engine(odd) is None
        assert len(m.gpu.said) == i + 1
    assert runtime.deserialize_cuda_engine(good) is not None


def test_another_device_or_package_takes_its_own_plans(m, tmp_path):
    m.gpu.device = Device("NVIDIA T4", "sm75")
    rtx = {"package": "tensorrt-rtx", "version": VERSIONS["tensorrt-rtx"]}
    for change in ({"gpu": ("NVIDIA T4", "sm75")}, rtx):
        assert m.engine(dataclasses.replace(doubling(tmp_path), **change)) is not None


def test_a_logger_is_made_and_told(m):
    trt, said = m.gpu.trt, []

    class Logger(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)

        def log(self, level, message):
            said.append(level)

    assert trt.Runtime(Logger()).deserialize_cuda_engine(b"") is None and said == [trt.ILogger.Severity.ERROR]
    for odd in (None, object.__new__(Logger)):
        with pytest.raises(TypeError, match="logger"):
            trt.Runtime(odd)
