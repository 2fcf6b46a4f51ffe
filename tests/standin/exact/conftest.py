"""The exactness tests of the runtime, run again on the stand-in for a GPU: only the engine is another.

Each module here takes the tests of one that runs them on `onnxruntime`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bundles import Exported, ExportFixture, exported_ring
from tests.runtime.test_ring_sessions import EXACT, HALF, HEADS, Model
from tests.standin.fixtures import Gpu
from tests.standin.plans import with_engines
from txl_export import Engine

NEED_HEADS = ("stepping",)  # of which tests ask more than the first


@dataclasses.dataclass(frozen=True)
class OnGpu(Exported):
    """A bundle whose engine runs on the stand-in."""

    running: Engine

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        return self.running


@pytest.fixture(scope="session")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Exported], OnGpu]:
    """The same bundle with engines of the stand-in; what is loaded goes on when it is no longer installed."""
    gpu = Gpu()

    there: dict[Path, OnGpu] = {}

    def get(made: Exported) -> OnGpu:
        if made.path not in there:
            bundle = with_engines(made.path, tmp_path_factory.mktemp("engines") / "bundle")
            with pytest.MonkeyPatch.context() as patch:
                gpu.install(patch)
                there[made.path] = OnGpu(bundle.path, made.checkpoint, Engine.load(bundle, "tensorrt"))
        return there[made.path]

    return get


@pytest.fixture(scope="session")
def exported(exported: ExportFixture, on_gpu: Callable[[Exported], OnGpu]) -> ExportFixture:
    """As the fixture of `tests.bundles`, on the stand-in."""
    return lambda *args, **more: on_gpu(exported(*args, **more))


@pytest.fixture(scope="session")
def model(exported: ExportFixture) -> Callable[[str], Model]:
    """As the fixture of `tests.runtime.test_ring_sessions`, on the stand-in whatever backend is named."""

    @functools.cache
    def get(words: str) -> Model:
        name, *how = words.split(" ")
        tolerance, precision = (HALF, "fp16") if "half" in how else (EXACT, "fp32")
        made = exported_ring(exported, name, precision, HEADS if name in NEED_HEADS and not how else ("log_probs",))
        return Model(made.engine, made.checkpoint, tolerance)

    return get
