from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run, byte_model


def test_a_bundle_passes_on_a_text(run: Run, bundle: Path, text: Path):
    result = run("verify", bundle, "--text", text, "--segments", 5)
    assert result.exit_code == 0, result.output
    assert (
        result.stderr
        == f"note: {bundle} runs on onnxruntime; not tensorrt, tensorrt-rtx, onnxruntime-cuda (no NVIDIA GPU)\n"
    )
    assert "PASSED" in result.stdout


def test_another_model_is_no_judge(run: Run, bundle: Path, tmp_path: Path):
    other = byte_model(tmp_path / "other", seed=9)
    result = run("verify", bundle, "--checkpoint", other, "--random", 4, "--segments", 2, "--json")
    assert result.exit_code == 1
    assert isinstance(json.loads(result.stdout), dict)
    assert result.stderr.startswith("error: ")
    assert "layer" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the API is called with; it reports what stands in "report"."""
    seen: dict[str, Any] = {"report": {"passed": True, "failure": None, "bisect": None}}

    def verify(bundle: Path, **options: Any) -> Any:
        seen.update(options, bundle=bundle)
        options["progress"](1, 2)
        return SimpleNamespace(**seen["report"], to_dict=lambda: {"kl": float("nan")})

    fake = SimpleNamespace(verify=verify, render=lambda report, console: console.print("rendered"))
    monkeypatch.setitem(sys.modules, "txl_export.verification", fake)
    return seen


def test_options_reach_the_api(run: Run, tmp_path: Path, asked: dict[str, Any]):
    np.save(tmp_path / "ids.npy", np.arange(6).reshape(2, 3))
    options = ("--checkpoint", "c", "--segments", 7, "--segment-len", 5, "--batch-size", 2, "--head", "top_k")
    result = run("verify", "b", "--ids", tmp_path / "ids.npy", *options, "--backend", "onnxruntime")
    assert (result.exit_code, result.stdout) == (0, "rendered\n")
    assert (asked["bundle"], asked["checkpoint"]) == (Path("b"), Path("c"))
    assert (asked["segments"], asked["segment_len"], asked["batch_size"]) == (7, 5, 2)
    assert (asked["head"], asked["backend"], asked["random"], asked["text"]) == ("top_k", "onnxruntime", None, None)
    np.testing.assert_array_equal(asked["ids"], np.arange(6).reshape(2, 3))


def test_text_is_given_as_bytes(run: Run, asked: dict[str, Any]):
    assert run("verify", "b", "--text", "-", stdin=b"\xffa").exit_code == 0
    assert asked["text"] == b"\xffa"


def test_seed_zero_is_a_seed(run: Run, asked: dict[str, Any]):
    assert run("verify", "b", "--random", 0).exit_code == 0
    assert asked["random"] == 0
    assert "give one of them" in run("verify", "b", "--random", 0, "--text", "t").stderr


def test_a_failure_is_one_line_after_the_report(run: Run, asked: dict[str, Any]):
    asked["report"] = {"passed": False, "failure": "segment 3, layer 1: 0.5 above 1e-4", "bisect": None}
    result = run("verify", "b")
    assert (result.exit_code, result.stdout) == (1, "rendered\n")
    assert result.stderr == "error: segment 3, layer 1: 0.5 above 1e-4\n"
    assert json.loads(run("verify", "b", "--json").stdout) == {"kl": None}


def test_a_checkpoint_is_no_bundle(run: Run, checkpoint: Path):
    result = run("verify", checkpoint)
    assert result.exit_code == 2
    assert "is no bundle" in result.stderr


def test_an_empty_text(run: Run, bundle: Path):
    result = run("verify", bundle, "--text", "/dev/null")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is empty" in result.stderr
