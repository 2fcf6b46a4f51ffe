from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the API is called with; nothing is timed here."""
    seen: dict[str, Any] = {}

    def bench(targets: Any, **options: Any) -> Any:
        seen.update(options, targets=targets)
        options["progress"]("eager, M = 128", 1, 4)
        return SimpleNamespace(to_dict=lambda: {"rows": []})

    fake = SimpleNamespace(bench=bench, render=lambda table, console: console.print("rendered"))
    monkeypatch.setitem(sys.modules, "txl_export.benchmarking", fake)
    return seen


def test_options_reach_the_api(run: Run, asked: dict[str, Any]):
    what = ("--mem-lens", "128,512", "--segment-lens", "1", "--batch-sizes", "1,8")
    how = ("--backends", "onnxruntime", "--layouts", "hidden,kv", "--rounds", 2, "--threads", 1)
    result = run("bench", "a", "b", *what, *how)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "rendered\n", "")
    assert asked["targets"] == (Path("a"), Path("b"))
    assert (asked["mem_lens"], asked["segment_lens"], asked["batch_sizes"]) == ((128, 512), (1,), (1, 8))
    assert (asked["backends"], asked["layouts"]) == (("onnxruntime",), ("hidden", "kv"))
    assert (asked["rounds"], asked["threads"]) == (2, 1)


def test_json(run: Run, asked: dict[str, Any]):
    assert json.loads(run("bench", "a", "--json").stdout) == {"rows": []}


def test_something_to_time_is_needed(run: Run, asked: dict[str, Any]):
    assert run("bench").exit_code == 2
    result = run("bench", "a", "--mem-lens", "1,many")
    assert result.exit_code == 2
    assert "'1,many' is no list of whole numbers" in result.stderr
