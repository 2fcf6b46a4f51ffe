"""What a package answers without saying why, with one that is made of plain classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from txl_export.building.native import Native, RefusedError

OPTIONS: dict[str, Any] = {
    "profiles": {"x": [[1], [1], [8]]}, "capabilities": [], "tf32": False, "opt_level": None, "workspace": None,
    "timing_cache": None,
}  # fmt: skip


class Config:
    """Takes everything, or not."""

    profile_index = 0
    takes_capabilities = True

    def clear_flag(self, flag: object) -> None:
        pass

    def set_compute_capability(self, capability: object, index: int) -> bool:
        return self.takes_capabilities

    def add_optimization_profile(self, profile: object) -> int:
        return self.profile_index


class Builder:
    """Gives no plan."""

    def __init__(self, config: Config) -> None:
        self.create_builder_config = lambda: config
        self.create_optimization_profile = lambda: SimpleNamespace(set_shape=lambda *_: None)

    def build_serialized_network(self, network: object, config: Config) -> None:
        return None


def refused(config: Config, **options: object) -> list[str]:
    trt = SimpleNamespace(
        ILogger=type("ILogger", (), {"Severity": None}),
        IProgressMonitor=object,
        BuilderFlag=SimpleNamespace(TF32=0),
        ProfilingVerbosity=SimpleNamespace(DETAILED=0),
        ComputeCapability=SimpleNamespace(SM80=80),
    )
    native = Native(trt, warn=lambda _: None, progress=lambda *_: True)
    native._builder = Builder(config)
    with pytest.raises(RefusedError) as e:
        native.build(OPTIONS | options, Path("none.engine"))
    assert not Path("none.engine").exists()
    return e.value.lines


def test_no_plan():
    assert refused(Config()) == ["no plan"]


def test_no_index_for_a_profile():
    config = Config()
    config.profile_index = -1
    assert refused(config) == ["it does not take the optimisation profile"]


def test_no_for_a_capability():
    config = Config()
    config.takes_capabilities = False
    assert refused(config, capabilities=["sm80"]) == ["it does not take the compute capability sm80"]
