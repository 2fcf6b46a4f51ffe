"""`txl-export report`: its options reach the API, its files are read, its exit codes are kept."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import txl_export
from tests.cli.conftest import Run
from tests.reporting.conftest import row, table, verification
from txl_export.cli.report import command
from txl_export.files import write_json


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the API is called with; it finds "found"."""
    seen: dict[str, Any] = {"found": None}

    def report(bundle: Path, out: Path, **options: Any) -> Any:
        seen.update(options, bundle=bundle, out=out)
        options["progress"]("comparing segments", 1, 2)
        return SimpleNamespace(
            path=out, files=(Path("r.verify.json"),), sentences=("It is <b>so</b>.",), verification=seen["found"]
        )

    monkeypatch.setitem(sys.modules, "txl_export.reporting", SimpleNamespace(report=report))
    return seen


def test_options_reach_the_api(run: Run, asked: dict[str, Any]):
    what = ("--text", "t.txt", "--mem-lens", "0,64", "--checkpoint", "c", "--threads", 2, "--pictures", "p")
    result = run("report", "b", "-o", "r.html", *what, "--quick", "--restart", "--no-bench")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "It is <b>so</b>.\nwrote r.html\nwrote r.verify.json\n"
    assert (asked["bundle"], asked["out"], asked["text"]) == (Path("b"), Path("r.html"), Path("t.txt"))
    assert (asked["mem_lens"], asked["checkpoint"], asked["threads"]) == ((0, 64), Path("c"), 2)
    assert (asked["quick"], asked["restart"], asked["measure"]) == (True, True, ("verify",))
    assert asked["pictures"] == Path("p")
    assert asked["verification"] is None and asked["table"] is None


def test_figures_are_read(run: Run, asked: dict[str, Any], tmp_path: Path):
    judged, timed = verification([1e-6, 0.0, 2e-6]), table([row()])
    write_json(tmp_path / "v.json", judged.to_dict())
    write_json(tmp_path / "b.json", timed.to_dict())
    result = run("report", "b", "-o", "r.html", "--verify", tmp_path / "v.json", "--bench", tmp_path / "b.json")
    assert result.exit_code == 0, result.stderr
    assert asked["verification"] == judged
    assert asked["table"] == timed


@pytest.mark.parametrize("option", ["--verify", "--bench"])
@pytest.mark.parametrize("content", [None, "[", "{}", '{"format": "txl-export-bench", "schema": 2, "rows": 1}'])
def test_files_that_are_no_figures(run: Run, asked: dict[str, Any], tmp_path: Path, option: str, content: str | None):
    if content is not None:
        (tmp_path / "f.json").write_text(content)
    result = run("report", "b", "-o", "r.html", option, tmp_path / "f.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and "f.json" in result.stderr and result.stderr.count("\n") == 1
    assert "bundle" not in asked


def test_out_of_tolerance_ends_with_one(run: Run, asked: dict[str, Any]):
    asked["found"] = verification([0.5])
    result = run("report", "b", "-o", "r.html", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "report": "r.html",
        "files": ["r.verify.json"],
        "passed": False,
        "headline": ["It is <b>so</b>."],
    }
    assert "segment 0" in result.stderr and result.stderr.count("\n") == 1


def test_a_report_of_a_bundle(run: Run, bundle: Path, text: Path, tmp_path: Path):
    result = run("report", bundle, "-o", tmp_path / "r.html", "--text", text, "--quick", "--no-bench")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "r.verify.json").read_text())["source"] == "text"


def test_options_have_the_words_and_defaults_of_the_api():
    given = command.make_context("report", ["b", "-o", "o"]).params
    taken = {k: p.default for k, p in inspect.signature(txl_export.report).parameters.items()}
    same = {"checkpoint", "text", "mem_lens", "threads", "quick", "restart", "pictures"}
    assert same <= given.keys() and same <= taken.keys()
    assert {name: given[name] for name in same} == {name: taken[name] for name in same}


@pytest.mark.parametrize("option", ["--verify", "--bench"])
def test_the_report_does_not_replace_its_figures(option: str, run: Run, asked: dict[str, Any], tmp_path: Path):
    (tmp_path / "f.json").write_text("figures")
    result = run("report", "b", "-o", tmp_path / "f.json", option, tmp_path / "f.json")
    assert result.exit_code == 2 and "named twice" in result.stderr and result.stderr.count("\n") == 1
    assert (tmp_path / "f.json").read_text() == "figures" and "bundle" not in asked
