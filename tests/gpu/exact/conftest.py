"""The exactness tests of the runtime, run again on a genuine GPU: only the engine is another.

Each module here takes the tests of one that runs them on `onnxruntime`, as those of `tests/standin/exact` do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest

from tests.bundles import Exported, ExportFixture, exported_ring
from tests.gpu.machine import Machine
from tests.runtime.test_ring_sessions import EXACT, HALF, HEADS, Model
from txl_export import Engine

NEED_HEADS = ("stepping",)  # of which tests ask more than the first


@dataclasses.dataclass(frozen=True)
class OnGpu(Exported):
    """A bundle whose engine runs on the GPU."""

    running: Engine

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        return self.running


@pytest.fixture(scope="session")
def exported(exported: ExportFixture, machine: Machine) -> ExportFixture:
    """As the fixture of `tests.bundles`, on the GPU."""

    def get(*args: object, **more: object) -> Exported:
        made = exported(*args, **more)
        return OnGpu(machine.bundle(made.path), made.checkpoint, machine.engine(made.path))

    return get


@pytest.fixture(scope="session")
def model(exported: ExportFixture) -> Callable[[str], Model]:
    """As the fixture of `tests.runtime.test_ring_sessions`, on the GPU whatever backend is named."""

    @functools.cache
    def get(words: str) -> Model:
        name, *how = words.split(" ")
        tolerance, precision = (HALF, "fp16") if "half" in how else (EXACT, "fp32")
        made = exported_ring(exported, name, precision, HEADS if name in NEED_HEADS and not how else ("log_probs",))
        return Model(made.engine, made.checkpoint, tolerance)

    return get
