"""The stand-in has the names and parameters of the genuine packages, and no others."""

from __future__ import annotations

import enum
import inspect
from pathlib import Path
from typing import Any

import cuda.bindings.runtime as genuine_cuda
import pytest

from tests.api.cuda_uses import parameters
from tests.api.listed import Listing, committed, installed, overloads
from tests.api.tables import MODULE
from tests.api.uses import Use
from tests.standin.cudart_graphs import Cudart
from tests.standin.device import StandIn
from tests.standin.gpu import Gpu
from tests.standin.graphs import doubling
from tests.standin.machine import Machine


@pytest.fixture(scope="module")
def rtx() -> Any:
    """The genuine package, imported before the stand-in takes its place."""
    return pytest.importorskip("tensorrt_rtx")


def test_it_has_nothing_that_tensorrt_has_not(gpu, tmp_path):
    wrong = [*unlisted(gpu, committed()), *of_instances(gpu, tmp_path, committed())]
    assert wrong == []


def test_it_has_nothing_that_tensorrt_rtx_has_not(rtx, gpu, tmp_path):
    assert gpu.packages["tensorrt-rtx"].__version__ == rtx.__version__
    assert [*unlisted(gpu, installed(rtx)), *of_instances(gpu, tmp_path, installed(rtx))] == []
    for cls, name in (
        ("Runtime", "deserialize_cuda_engine"),
        ("ICudaEngine", "create_execution_context"),
        ("IExecutionContext", "set_input_shape"),
    ):
        assert own_parameters(getattr(getattr(gpu.trt, cls), name)) in overloads(getattr(rtx, cls), name)


def public(thing: object) -> list[str]:
    """Names that a user sees."""
    return [name for name in dir(thing) if not name.startswith("_")]


def own_parameters(function: object) -> list[str]:
    """As a listing has them."""
    taken = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [p.name + "=" * (p.default is not p.empty) for p in taken if p.name != "self"]


def unlisted(gpu: Gpu, genuine: Listing) -> list[str]:
    """Names of the stand-in that a package has not, or with other parameters."""
    uses = [Use("", MODULE, name) for name in public(gpu.trt)]
    for name in public(gpu.trt):
        cls = getattr(gpu.trt, name)
        if issubclass(cls, enum.Enum):
            uses += [Use("", name, member.name) for member in cls]
            continue
        for member in public(cls):
            uses.append(Use("", name, member))
            listed = genuine.members(name).get(member)
            if listed is not None and listed != own_parameters(getattr(cls, member)):
                uses.append(Use("", name, f"{member}({own_parameters(getattr(cls, member))})"))
    return [w for use in uses if (w := genuine.problem(use))]


def of_instances(gpu: Gpu, folder: Path, genuine: Listing) -> list[str]:
    """Likewise of an engine and a context."""
    engine = Machine(gpu).engine(doubling(folder))
    made = {"ICudaEngine": engine, "IExecutionContext": engine.create_execution_context()}
    uses = [Use("", name, member) for name, thing in made.items() for member in public(thing)]
    return [w for use in uses if (w := genuine.problem(use))]


def test_it_takes_what_cuda_python_takes():
    ours = Cudart(StandIn())
    functions = [name for name in public(ours) if name.startswith("cuda") and inspect.ismethod(getattr(ours, name))]
    assert "cudaMemcpy2DAsync" in functions
    for name in functions:
        assert parameters(ours, name) == parameters(genuine_cuda, name)
    with pytest.raises(AttributeError, match="cudaDeviceReset"):
        ours.cudaDeviceReset()
