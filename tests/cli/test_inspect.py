from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.torch_models import CONFIGS, make
from tests.cli.conftest import Run
from txl_export.named_configs import config_names


@pytest.fixture
def found(run: Run) -> Any:
    """Runs inspect --json and parses what it says."""

    def call(*args: object) -> dict[str, Any]:
        result = run("inspect", *args, "--json")
        assert result.exit_code == 0, result.output
        value: dict[str, Any] = json.loads(result.stdout)
        return value

    return call


def test_a_checkpoint(found: Any, checkpoint: Path):
    f = found(checkpoint, "--mem-lens", "3,30")
    assert (f["kind"], f["origin"], f["vocabulary"]) == ("checkpoint", "native", "bytes")
    assert 'format "txl-export"' in f["reason"]
    assert f["model"]["d_model"] == 32
    assert f["dialect"]["initial_memory"] == "empty"
    assert [c["mem_len"] for c in f["costs"]] == [3, 12, 30]  # the stored one too
    kv = f["costs"][0]["layouts"]["kv"]
    assert kv["memory_bytes"] == 2 * 2 * 3 * 12 * 4  # layers, key and value, M, heads of 6, bytes
    assert kv["flops_per_token"] == sum(kv["flops_by_part"].values())


def test_what_export_would_make(found: Any, checkpoint: Path):
    plan = found(checkpoint)["export"]
    assert (plan["mem_len"], plan["layout"], plan["segment_len"]) == (12, "ring", 64)
    for more in ((), ("--no-same-length",)):
        plan = found(checkpoint, *more)["export"]
        assert [(g["segment"], g["added"]) for g in plan["graphs"]] == [("1", False), ("8", False), ("64", False)]


def test_the_size_that_export_would_take_is_about_right(found: Any, checkpoint: Path, bundle: Path):
    made = found(bundle)
    planned = found(checkpoint)["export"]["bytes"]
    assert planned == pytest.approx(made["bytes"], rel=0.35)  # the bundle has shorter segments


def test_overrides_show(found: Any, checkpoint: Path):
    f = found(checkpoint, "--clamp-len", 5, "--initial-memory", "zeros", "--mem-len", 40)
    assert f["overrides"] == {"mem_len": 40, "clamp_len": 5, "initial_memory": "zeros"}
    assert (f["model"]["clamp_len"], f["dialect"]["initial_memory"]) == (5, "zeros")
    assert f["model"]["mem_len"] == f["export"]["mem_len"] == 40 and 40 in [c["mem_len"] for c in f["costs"]]
    f = found("nvidia/wt103-base", "--mem-len", 41, "--no-same-length", "--set", "window_extra=1")
    assert (f["model"]["mem_len"], f["model"]["same_length"], f["dialect"]["window_extra"]) == (41, False, 1)


def test_what_was_given_is_not_called_a_default(run: Run, tmp_path: Path):
    path, _ = make("state dict", tmp_path / "model.pt", CONFIGS["plain"])
    assert "mem_len 512" in run("inspect", path).stdout
    said = run("inspect", path, "--mem-len", 6, "--same-length").stdout
    assert "note: the files do not say pre_lnorm False, clamp_len -1" in said and "mem_len 512" not in said


def test_what_a_state_dict_does_not_say_is_asked_for_and_set(found: Any, run: Run, tmp_path: Path):
    path, _ = make("state dict", tmp_path / "model.pt", CONFIGS["one_proj"])
    result = run("inspect", path)
    assert result.exit_code == 2 and "--set cutoffs=..." in result.stderr
    said = run("inspect", path, "--set", "cutoffs=[9,17]").stdout
    assert "note: the files do not say pre_lnorm False, mem_len 512" in said and "--set pre_lnorm=..." in said
    f = found(path, "--set", "cutoffs=[9,17]", "--set", "pre_lnorm=true", "--set", "cluster_order=forward")
    assert f["overrides"] == {"cutoffs": [9, 17], "pre_lnorm": True, "cluster_order": "forward"}
    assert (f["model"]["cutoffs"], f["model"]["pre_lnorm"]) == ([9, 17], True)
    assert f["dialect"]["cluster_order"] == "forward" and "pre_lnorm" not in f["notes"][0]
    for wrong in ("pre_lnorm", "=true", "depth=3", "n_head=7"):
        result = run("inspect", path, "--set", "cutoffs=[9,17]", "--set", wrong)
        assert result.exit_code == 2 and len(result.stderr.strip().splitlines()) == 1


def test_a_bundle(found: Any, bundle: Path, checkpoint: Path):
    f = found(bundle)
    assert (f["kind"], f["layout"], f["mem_len"], f["segment_len"]) == ("bundle", "ring", 12, 8)
    assert f["ring"] == {"rows": 27, "ring": 20, "guard": 7, "reach": 8, "rewind": 0}
    costs = {c["mem_len"]: c["layouts"]["ring"]["memory_bytes"] for c in f["costs"]}
    assert costs[12] == 27 * 2 * 2 * 12 * 4 and costs[128] == (128 + 15) * 2 * 2 * 12 * 4
    assert [g["segment"] for g in f["graphs"]] == ["1", "8"]
    assert [s["input"] for s in f["states"]] == ["positions", "key_00", "value_00", "key_01", "value_01"]
    assert Path(f["judge"]["found"]) == checkpoint
    assert set(f["versions"]) >= {"torch", "onnx", "txl-export"}
    assert f["bytes"] == sum(p.stat().st_size for p in bundle.iterdir() if p.name != "manifest.json")


def test_a_bundle_that_was_moved_away_from_its_judge(run: Run, found: Any, bundle: Path, tmp_path: Path):
    moved = shutil.copytree(bundle, tmp_path / "deep" / "down" / "bundle")
    assert found(moved)["judge"]["found"] is None
    assert "not found (it was at" in run("inspect", moved).stdout


@pytest.mark.parametrize("name", config_names())
def test_a_named_configuration(found: Any, name: str):
    f = found(name)
    assert (f["kind"], f["name"]) == ("configuration", name)
    assert f["model"]["mem_len"] in [c["mem_len"] for c in f["costs"]]


def test_published_sizes(found: Any):
    assert found("kimiyoung/wt103-base")["parameters"]["total"] == pytest.approx(151e6, rel=0.005)
    assert found("huggingface/transfo-xl-wt103")["parameters"]["total"] == pytest.approx(285e6, rel=0.005)


def test_a_name_says_whose_it_is_and_where_its_figures_stand(run: Run, found: Any):
    f = found("nvidia/wt103-base")
    assert (f["origin"], f["dialect"]["window_extra"]) == ("nvidia", 1)
    assert "nvidia (figures of wt103_base.yaml)" in run("inspect", "nvidia/wt103-base").stdout


def test_the_tables(run: Run, checkpoint: Path, bundle: Path):
    out = run("inspect", checkpoint).stdout
    for words in (
        "2 layers, d_model 32",
        "same_length True",
        "FLOPs ring",
        "1600",
        "export makes, unless told otherwise",
    ):
        assert words in out
    out = run("inspect", bundle).stdout
    for words in (
        "log_probs.L8.onnx",
        "ring, fp32",
        "12, or fewer: each session",
        "S = 20",
        "G = 7",
        "rewind",
        "5 tensors",
        "torch ",
    ):
        assert words in out


def test_notes_of_the_loader_are_shown(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    import dataclasses

    from txl_export.checkpoints import native

    load = native.load
    monkeypatch.setattr(native, "load", lambda *args: dataclasses.replace(load(*args), notes=("read [twice]",)))
    assert "note: read [twice]\n" in run("inspect", checkpoint).stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("wt104-base",), "wt104-base is no file or folder, and no configuration is named 'wt104-base': use hugging"),
        (("large/wt103-base",), "large/wt103-base is no file or folder, and no configuration is named 'large/wt103-"),
        (("nvidia/wt103-base", "--origin", "native"), "nvidia/wt103-base is a configuration of nvidia"),
        (("nvidia/wt103-base", "--mem-lens=-1"), "mem_lens hold -1"),
    ],
)
def test_what_cannot_be_inspected_is_one_line(run: Run, args: tuple[str], says: str):
    result = run("inspect", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {says}")
    assert result.stderr.count("\n") == 1


def test_a_bundle_keeps_its_evaluation_values(run: Run, bundle: Path):
    result = run("inspect", bundle, "--no-same-length", "--origin", "native")
    assert result.exit_code == 2
    assert "--origin, --same-length cannot change its graphs" in result.stderr
    for given in (("--mem-len", 50), ("--set", "mem_len=50")):
        result = run("inspect", bundle, *given)
        assert result.exit_code == 2
        assert "mem_len 50 was asked for, this bundle holds 12: export again with --mem-len 50" in result.stderr
    for fits in (12, 5):  # which sessions choose
        said = json.loads(run("inspect", bundle, "--mem-len", fits, "--json").stdout)
        assert fits in [c["mem_len"] for c in said["costs"]]


def test_a_config_that_needs_a_memory_says_so(run: Run, found: Any, tmp_path: Path):
    import dataclasses

    from tests.helpers import random_checkpoint, tiny_config
    from txl_export.checkpoints import native

    stored = random_checkpoint(tiny_config())
    config = dataclasses.replace(stored.config, mem_len=0)
    path = native.save(tmp_path / "m", dataclasses.replace(stored, config=config))
    assert "impossible" not in found(path)["export"]
    assert "mem_len 0" in found(path, "--same-length")["export"]["impossible"]
    assert "export needs options: same_length with mem_len 0" in run("inspect", path, "--same-length").stdout
