"""A genuine GPU, and every backend that needs one: `pytest -n 0 -m gpu`. Skipped with the reason without it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import txl_export as txl
from tests.gpu.machine import BATCH, Machine
from txl_export.backends import GPU_BACKENDS, refusal
from txl_export.building.packages import PACKAGES
from txl_export.bundle import Bundle
from txl_export.errors import EnvironmentMismatch

# These tests are of the runtime, whatever kernels a long search would choose.
OPT_LEVEL = 1


@pytest.fixture(scope="session", params=GPU_BACKENDS)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    name: str = request.param

    def build(exported: Path) -> Path:
        if name not in PACKAGES:
            why = refusal(name, Bundle.open(exported))
            if why:
                pytest.skip(f"{name}: {why}")
            return exported
        bundle = tmp_path_factory.mktemp(name) / "bundle"
        shutil.copytree(exported, bundle)
        try:
            txl.build(bundle, backend=name, batch=BATCH, opt_level=OPT_LEVEL)
        except EnvironmentMismatch as e:
            pytest.skip(f"{name}: {e.short}")
        return bundle

    return Machine(name, build, genuine=True)
