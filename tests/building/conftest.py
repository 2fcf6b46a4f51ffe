"""Bundles with engines, the process that builds, and packages that stand in for real ones in that process."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bundles import ExportFixture
from tests.helpers import random_checkpoint, tiny_config
from txl_export.building import BuildReport, build
from txl_export.building.packages import PACKAGES
from txl_export.building.process import BuilderProcess
from txl_export.precision import PrecisionPolicy

RTX = PACKAGES["tensorrt-rtx"]

_ABSENT = importlib.util.find_spec(RTX.module) is None and not os.environ.get("CI")
needs_rtx = pytest.mark.skipif(_ABSENT, reason="tensorrt-rtx is not installed: real engines are built with it")

# A package of another name, made of the real one: what it is told is written beside it.
PROXY = """
import json
from pathlib import Path
import tensorrt_rtx as real
from tensorrt_rtx import *

__version__ = "11.4.0.106"
HERE = Path(__file__).parent
OWN_TYPE = None  # what engines say of the first memory tensor
io = []


class Builder(real.Builder):
    def build_serialized_network(self, network, config):
        tensors = [("INPUT", network.get_input(i)) for i in range(network.num_inputs)]
        tensors += [("OUTPUT", network.get_output(i)) for i in range(network.num_outputs)]
        io[:] = [(mode, t.name, t.dtype, tuple(t.shape)) for mode, t in tensors]
        cache = config.get_timing_cache()
        told = {
            "tf32": config.get_flag(real.BuilderFlag.TF32),
            "opt_level": config.builder_optimization_level,
            "workspace": config.get_memory_pool_limit(real.MemoryPoolType.WORKSPACE),
            "capabilities": config.num_compute_capabilities,
            "timings": cache is not None,
        }
        with (HERE / "told.jsonl").open("a") as f:
            print(json.dumps(told), file=f)
        return super().build_serialized_network(network, config)


class Engine:
    num_io_tensors = property(lambda self: len(io))

    def get_tensor_name(self, i):
        return io[i][1]

    def _of(self, name):
        return next(t for t in io if t[1] == name)

    def get_tensor_mode(self, name):
        return real.TensorIOMode.__members__[self._of(name)[0]]

    def get_tensor_dtype(self, name):
        return OWN_TYPE if OWN_TYPE and name == "key_00" else self._of(name)[2]

    def get_tensor_shape(self, name):
        return self._of(name)[3]

    def get_aliased_input_tensor(self, name):
        return None


class Runtime:
    def __init__(self, logger):
        pass

    def deserialize_cuda_engine(self, plan):
        return Engine()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """stand_in(module, code): the process that builds imports this code under that name; gives its folder."""

    def make(module: str, code: str) -> Path:
        folder = tmp_path / "packages"
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return folder

    return make


@pytest.fixture
def folder(exported: ExportFixture, tmp_path: Path) -> Path:
    """A bundle of one graph without engines."""
    return Path(shutil.copytree(exported("stepping", "kv", ("1-8",)).path, tmp_path / "bundle"))


@pytest.fixture
def three(exported: ExportFixture, tmp_path: Path) -> Path:
    """A bundle of three graphs without engines: lengths 1, 8 and 1-8."""
    return Path(shutil.copytree(exported("stepping", "kv", (1, 8)).path, tmp_path / "three"))


@pytest.fixture(scope="session")
def engines(exported: ExportFixture, tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    """A bundle of three graphs with an engine for each."""
    copy = tmp_path_factory.mktemp("engines") / "kv"
    return build(shutil.copytree(exported("stepping", "kv", (1, 8)).path, copy), "tensorrt-rtx")


@pytest.fixture
def built(engines: BuildReport, tmp_path: Path) -> Path:
    """A copy of that, to be damaged."""
    return Path(shutil.copytree(engines.bundle.path, tmp_path / "built"))


@pytest.fixture(scope="session")
def _single(exported: ExportFixture, tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    copy = tmp_path_factory.mktemp("single") / "kv"
    return build(shutil.copytree(exported("stepping", "kv", ("1-8",)).path, copy), "tensorrt-rtx")


@pytest.fixture
def single(_single: BuildReport, tmp_path: Path) -> Path:
    """A copy of a bundle of one graph and its engine."""
    return Path(shutil.copytree(_single.bundle.path, tmp_path / "single"))


@pytest.fixture(scope="module")
def process() -> Iterator[BuilderProcess]:
    """A process that builds with tensorrt-rtx."""
    with BuilderProcess(RTX, warn=lambda _: None) as running:
        yield running


@pytest.fixture(scope="session")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """typed(precision, layout, segment_lens, heads): a bundle of one layer in half precision."""
    from txl_export import export

    def make(precision: str, layout: str, segment_lens: tuple[int | str, ...], heads: tuple[str, ...]) -> Path:
        out = tmp_path_factory.mktemp("typed") / f"{precision}-{layout}"
        checkpoint = random_checkpoint(tiny_config(n_layer=1), std=0.3)
        policy = PrecisionPolicy(precision)
        return export(
            checkpoint, out, layout=layout, segment_lens=segment_lens, head=heads, cover=False, calibration=policy
        ).path

    return make


def contents(path: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {p.name: p.read_bytes() for p in path.iterdir()}


def told(folder: Path) -> list[dict[str, object]]:
    """What the proxy was told, one entry an engine."""
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]
