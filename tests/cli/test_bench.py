from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from txl_export import benchmarking
from txl_export.benchmarking.table import Quality, Table
from txl_export.errors import EnvironmentMismatch, InputError
from txl_export.files import write_json


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the API is called with; nothing is timed here."""
    seen: dict[str, Any] = {}

    def bench(targets: Any, **options: Any) -> Any:
        seen.update(options, targets=targets)
        options["progress"]("eager, M = 128", 1, 4)
        if seen.get("fails"):
            raise seen["fails"]
        options["log"]("1 of 1: a, M = 128")
        return Table((), {"cpu": "Some CPU"}, 1, 5)

    monkeypatch.setattr(benchmarking, "bench", bench)
    monkeypatch.setattr(benchmarking, "render", lambda table, console: console.print("rendered"))
    return seen


def test_options_reach_the_api(run: Run, asked: dict[str, Any]):
    what = ("--mem-lens", "128,512", "--segment-lens", "1", "--batch-sizes", "1,8")
    how = ("--backends", "onnxruntime", "--layouts", "hidden,kv", "--rounds", 2, "--threads", 1)
    result = run("bench", "a", "b", *what, *how)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "rendered\n", "1 of 1: a, M = 128\n")
    assert asked["targets"] == (Path("a"), Path("b"))
    assert (asked["mem_lens"], asked["segment_lens"], asked["batch_sizes"]) == ((128, 512), (1,), (1, 8))
    assert (asked["backends"], asked["layouts"]) == (("onnxruntime",), ("hidden", "kv"))
    assert (asked["rounds"], asked["threads"]) == (2, 1)


def test_checkpoints_are_timed_as_they_are_read(run: Run, asked: dict[str, Any], checkpoint: Path, bundle: Path):
    read = ("--mem-len", 20, "--no-same-length", "--clamp-len", 7, "--set", "layer_norm_eps=0.01")
    assert run("bench", checkpoint, *read).exit_code == 0
    (loaded,) = asked["targets"]
    expected = {"mem_len": 20, "same_length": False, "clamp_len": 7, "layer_norm_eps": 0.01}
    assert (loaded.path, loaded.overrides) == (checkpoint, expected)
    assert (loaded.config.mem_len, loaded.config.clamp_len, loaded.dialect.layer_norm_eps) == (20, 7, 0.01)
    result = run("bench", checkpoint, bundle, "--clamp-len", 7)
    assert result.exit_code == 2 and f"{bundle} is a bundle, --clamp-len cannot change its graphs" in result.stderr


def test_a_bundle_of_several_memory_lengths_is_asked_for_them_by_name(run: Run, asked: dict[str, Any], bundle: Path):
    result = run("bench", bundle, "--mem-len", 5)
    assert result.exit_code == 2 and f"{bundle} is a bundle of M = 12: time it with --mem-lens 5" in result.stderr
    assert run("bench", bundle, "--mem-len", 12).exit_code == 0


def test_json(run: Run, asked: dict[str, Any]):
    found = json.loads(run("bench", "a", "--json").stdout)
    assert (found["format"], found["rows"]) == ("txl-export-bench", [])


def test_something_to_time_is_needed(run: Run, asked: dict[str, Any]):
    assert run("bench").exit_code == 2
    result = run("bench", "a", "--mem-lens", "1,many")
    assert result.exit_code == 2
    assert "'1,many' is no list of whole numbers" in result.stderr


def test_files_and_texts_reach_the_api(run: Run, asked: dict[str, Any], tmp_path: Path):
    files = {name: tmp_path / "new" / f"bench.{name}" for name in ("json", "csv", "md")}
    options = ("-o", files["json"], "--csv", files["csv"], "--markdown", files["md"])
    result = run("bench", "a", "--text", "t.txt", "--text-bytes", 99, "--restart", *options)
    assert result.exit_code == 0, result.output
    assert (asked["output"], asked["restart"]) == (files["json"], True)
    assert (asked["text"], asked["text_bytes"]) == (Path("t.txt"), 99)
    assert files["csv"].read_text().startswith("target,backend,layout,mem_len")
    assert "Some CPU" in files["md"].read_text()


@pytest.mark.parametrize("option", ["-o", "--csv", "--markdown"])
def test_files_that_cannot_be_written_are_refused_first(option: str, run: Run, asked: dict[str, Any], tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = run("bench", "a", option, blocked / "bench")
    assert (result.exit_code, asked) == (2, {})
    assert "cannot be written" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (SystemExit(143), 143), (EnvironmentMismatch("a worker died"), 3)],
)
def test_an_ended_run_says_what_is_kept(
    error: BaseException, code: int, run: Run, asked: dict[str, Any], tmp_path: Path
):
    asked["fails"] = error
    output = tmp_path / "bench.json"
    table = Table((), {}, 1, 5, (Quality("a", 1, 1, "t", 2, 1.0, 2),), missing=7)
    write_json(output, table.to_dict())
    result = run("bench", "a", "-o", output)
    assert result.exit_code == code
    kept = f"0 rows and 1 figures of quality are kept in {output}, 7 are missing: the same command goes on"
    assert kept in result.stderr
    assert "nothing is kept: with --output FILE" in run("bench", "a").stderr


def test_a_refused_file_is_not_praised(run: Run, asked: dict[str, Any], tmp_path: Path):
    asked["fails"] = InputError("measured with rounds 2, now it is 3")
    output = tmp_path / "bench.json"
    write_json(output, Table((), {}, 1, 2).to_dict())
    assert run("bench", "a", "-o", output).stderr == "error: measured with rounds 2, now it is 3\n"


@pytest.mark.parametrize("same", ["--csv", "--markdown", "--text", "target"])
def test_one_name_for_two_files_is_refused_first(same: str, run: Run, asked: dict[str, Any], tmp_path: Path):
    path = tmp_path / "x"
    options = [path] if same == "target" else ["a", same, path]
    result = run("bench", *options, "-o", path)
    assert (result.exit_code, asked) == (2, {})
    assert "named twice" in result.stderr and result.stderr.count("\n") == 1
