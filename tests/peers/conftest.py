"""Small shapes, and comparisons with nothing behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import artefacts, campaign
from benchmarks.campaign import BASE, Campaign, Plan
from benchmarks.matrix import Point
from benchmarks.shapes import Shape
from tests.helpers import random_checkpoint, tiny_config
from txl_export.benchmarking.process import Comparison
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import Facts, Limit, Table, make_rows
from txl_export.checkpoints import native

PEERS = ("huggingface", "eager", "compile", "plain-onnx", "kv")
MS = {"huggingface": 40.0, "eager": 30.0, "compile": 20.0, "plain-onnx": 10.0, "kv": 2.0}


@pytest.fixture
def shape(tmp_path: Path) -> Shape:
    """Two layers of random weights."""
    checkpoint = random_checkpoint(tiny_config())
    folder = native.save(tmp_path / "checkpoint", checkpoint)
    return Shape("tiny", checkpoint.config, checkpoint.dialect, folder, "digest")


def blank(**changes: Any) -> Table:
    limits = {"read": [{"bytes": 10**9, "bytes_per_second": 4e10}], "matmul": [{"flops_per_second": 5e11}]}
    machine = {"cpu": "a CPU", "cores": 2, "versions": {"torch": "2"}, "limits": limits}
    values = {"machine": machine, "threads": 2, "rounds": 2}
    return Table(**{"rows": (), "base": BASE, "command": "make bench"} | values | changes)


def measured(comparison: Comparison) -> list[Any]:
    """Rows with planted times, each round the slower by a tenth."""
    limit = Limit(bytes=1000, flops=10, bandwidth=1e6, flop_rate=1e12)
    times = {c: [[f * MS[c.backend]] * 3 for f in (1.0, 1.1000001)] for c in comparison.cells}
    facts = {c: Facts(c.mem_len, 500.0, 1500.0, 4096, 10**8, limit) for c in comparison.cells}
    return make_rows(times, facts, comparison.base)


class Bench:
    """Runs campaigns whose comparisons only plant rows; `compared` lists them, `on_compare` may raise."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder, self.shape = folder, shape
        self.compared: list[tuple[str, ...]] = []
        self.on_compare: Callable[[Comparison], None] = lambda _: None
        self.said: list[str] = []

    def compare(self, comparisons: Any, store: Store, rounds: int, **_: Any) -> None:
        for comparison in comparisons:
            self.compared.append(tuple(c.backend for c in comparison.cells))
            self.on_compare(comparison)
            store.add(measured(comparison))

    def plan(self, *points: Point, **changes: Any) -> Plan:
        values = {"rounds": 2, "threads": 2, "minutes": 60.0, "build_first": False, "again": False}
        return Plan(
            **{"name": "full", "points": points, "shapes": {"tiny": self.shape}, "peers": PEERS} | values | changes
        )

    def campaign(self, plan: Plan, before: Any = None) -> Campaign:
        store = Store(blank(), self.folder / "store.json")
        return Campaign(plan, store, self.folder, before, self.said.append, lambda *_: None)


@pytest.fixture
def bench(tmp_path: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = Bench(tmp_path, shape)
    monkeypatch.setattr(campaign, "run_comparisons", found.compare)
    monkeypatch.setattr(campaign, "ensure", lambda *_: None)
    monkeypatch.setattr(artefacts, "CACHE", tmp_path / "cache")
    return found
