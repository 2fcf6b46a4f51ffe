from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import txl_export
from tests.cli.conftest import Run
from txl_export.bundle import Bundle


def test_json_says_what_was_made(exported: Result):
    said = json.loads(exported.stdout)
    bundle = Bundle.open(said["bundle"])
    assert exported.exit_code == 0
    assert exported.stderr == ""
    assert [(g["segment"], g["head"]) for g in said["graphs"]] == [("1", "log_probs"), ("8", "log_probs")]
    assert (said["layout"], said["precision"], said["mem_len"], said["segment_len"]) == ("ring", "fp32", 12, 8)
    sizes = {p.name: p.stat().st_size for p in bundle.path.iterdir() if p.name != "manifest.json"}
    assert said["files"] == sizes
    assert said["bytes"] == sum(sizes.values())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, bundle: Path) -> dict[str, Any]:
    """What the API is called with; it answers with a bundle that is there."""
    seen: dict[str, Any] = {}

    def export(checkpoint: object, out_dir: Path, **options: Any) -> Bundle:
        seen.update(options, checkpoint=checkpoint, out_dir=out_dir)
        return Bundle.open(bundle)

    monkeypatch.setattr(txl_export, "export", export)
    return seen


def test_options_reach_the_api(run: Run, checkpoint: Path, asked: dict[str, Any]):
    lengths = ("--mem-len", 20, "--segment-lens", "1, 4-16", "--segment-len", 4)
    heads = ("--head", "target", "--head", "log_probs@last,top_k", "--top-k", 3)
    read = ("--no-same-length", "--clamp-len", 7, "--initial-memory", "zeros", "--origin", "native")
    others = ("--layout", "hidden", "--keep-checkpoint")
    result = run("export", checkpoint, "-o", "out", *lengths, *heads, *read, *others)
    assert result.exit_code == 0, result.output
    assert (asked["segment_lens"], asked["segment_len"]) == (("1", "4-16"), 4)
    assert (asked["head"], asked["top_k"]) == (["target", "log_probs@last", "top_k"], 3)
    assert (asked["layout"], asked["precision"], asked["keep_checkpoint"]) == ("hidden", "fp32", True)
    assert asked["out_dir"] == Path("out")
    loaded = asked["checkpoint"]
    assert loaded.overrides == {"mem_len": 20, "same_length": False, "clamp_len": 7, "initial_memory": "zeros"}
    assert (loaded.config.mem_len, loaded.config.same_length, loaded.config.clamp_len) == (20, False, 7)


def test_the_table_names_files_and_what_comes_next(run: Run, checkpoint: Path, asked: dict[str, Any], bundle: Path):
    out = run("export", checkpoint, "-o", "out").stdout
    assert "log_probs.L8.onnx" in out
    assert "weights.bin" in out
    assert f"txl-export verify {bundle}" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--layout", "scroll"), "layout 'scroll' is unknown"),
        (("--precision", "fp8"), "precision 'fp8' is not available"),
        (("--head", "tail"), "head 'tail' is unknown"),
        (("--segment-lens", "ten"), "segment length 'ten'"),
        (("--mem-len", "-1"), "mem_len is -1"),
        (("--origin", "mars"), "origin 'mars' is unknown"),
    ],
)
def test_what_cannot_be_had_is_one_line(run: Run, checkpoint: Path, tmp_path: Path, options: tuple[str], says: str):
    result = run("export", checkpoint, "-o", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {says}")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_few_bits_say_what_they_are_for_and_how_they_were_chosen(
    run: Run, checkpoint: Path, text: Path, tmp_path: Path
):
    out = tmp_path / "out"
    options = ("--segment-lens", "8", "--precision", "int8", "--calibration", text, "--tensors", "layers.*.W_1=fp32")
    result = run("export", checkpoint, "-o", out, *options)
    assert result.exit_code == 0, result.output
    told = result.stdout.splitlines()
    assert ", int8, " in result.stdout
    assert any(line.startswith("int8, chosen on text, 4 streams of ") for line in told)
    assert "fp32: W_1 of layers 0, 1: overridden" in told
    assert told[-1] == f"next: txl-export verify {out} --text FILE"
    said = run("inspect", out).stdout
    assert "weights only, all else fp32" in said and "int8 here alone changes perplexity by" in " ".join(said.split())


def test_a_checkpoint_that_is_not_there(run: Run, tmp_path: Path):
    result = run("export", tmp_path / "none", "-o", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: {tmp_path / 'none'} does not exist: give a folder with config.json and weights, a .pt file, or the "
        "beginning of a TensorFlow checkpoint's names\n",
    )


def test_lists_have_no_empty_entries(run: Run, checkpoint: Path, tmp_path: Path):
    result = run("export", checkpoint, "-o", tmp_path / "out", "--segment-lens", "1,,8")
    assert result.exit_code == 2
    assert "'1,,8' has an empty entry" in result.stderr


def test_what_is_given_for_one_name_is_given_once(run: Run, checkpoint: Path, asked: dict[str, Any], tmp_path: Path):
    start = ("export", checkpoint, "-o", tmp_path / "out")
    assert run(*start, "--tensors", "logits=fp32", "--tensors", "memory=fp32,logits=fp32").exit_code == 0
    assert asked["tensors"] == {"logits": "fp32", "memory": "fp32"}
    for twice in (("logits=fp32,logits=fp16",), ("logits=fp32", "--tensors", "logits=fp16")):
        result = run(*start, "--tensors", *twice)
        assert result.exit_code == 2 and "logits is given two values: give it once" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    result = run("inspect", checkpoint, "--set", "n_head=2", "--set", "n_head=3")
    assert result.exit_code == 2 and "n_head is given two values" in result.stderr
