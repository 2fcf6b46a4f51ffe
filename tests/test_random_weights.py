"""Random weights of published configurations: drawn, exported, and said wherever their answers are read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txl_export as txl
from tests.cli.conftest import Run, run  # noqa: F401 - a fixture
from tests.helpers import tiny_config
from txl_export import named_configs
from txl_export.bundle import MANIFEST, Bundle
from txl_export.checkpoints import native
from txl_export.weights import weight_shapes

NAME = "kimiyoung/tiny"


@pytest.fixture(autouse=True, scope="module")
def tiny_name() -> Iterator[None]:
    """A configuration small enough to export in a test."""
    config = dataclasses.asdict(tiny_config(same_length=True, cutoffs=(9, 17)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(named_configs._CONFIGS, NAME, config)
        patch.setitem(named_configs._SOURCES, NAME, "nowhere")
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("random") / "bundle"
    checkpoint = txl.random_checkpoint(NAME, 3, {"clamp_len": 2})
    return txl.export(checkpoint, out, segment_lens=(1, 4)).path


def test_equal_seeds_give_equal_weights_and_others_others():
    first, again, other = (txl.random_checkpoint(NAME, seed) for seed in (1, 1, 2))
    assert first.weights.keys() == weight_shapes(first.config).keys()
    assert all(np.array_equal(w, again.weights[n]) for n, w in first.weights.items())
    assert not any(np.array_equal(w, other.weights[n]) for n, w in first.weights.items())
    assert all(w.std() > 0 and w.dtype == np.float32 for w in first.weights.values())  # biases too
    assert first.weights["layers.0.attention.norm.weight"].mean() == pytest.approx(1, abs=0.1)
    assert (first.origin, first.vocab) == ("kimiyoung", None)
    assert first.dialect.cluster_order == "reversed"


def test_evaluation_values_can_be_given_and_the_architecture_not():
    changed = txl.random_checkpoint(NAME, overrides={"mem_len": 3, "initial_memory": "zeros"})
    assert (changed.config.mem_len, changed.dialect.initial_memory) == (3, "zeros")
    with pytest.raises(txl.ConfigError, match="d_model"):
        txl.random_checkpoint(NAME, overrides={"d_model": 18})


@pytest.mark.parametrize("seed", [-1, 1.0, True])
def test_seeds_that_are_none(seed: Any):
    with pytest.raises(txl.InputError, match="expected a whole number of 0 or more"):
        txl.random_checkpoint(NAME, seed)


def test_a_bundle_says_that_its_weights_are_random(run: Run, bundle: Path, tmp_path: Path):  # noqa: F811
    assert json.loads((bundle / MANIFEST).read_text())["judge"]["random"] == {"name": NAME, "seed": 3}
    np.save(tmp_path / "ids.npy", np.arange(20))
    told = "note: the weights are random (seed 3)"
    assert told in run("score", bundle, "--ids", tmp_path / "ids.npy").stdout
    said = run("inspect", bundle).stdout
    assert told in said and f"random weights of {NAME}, seed 3: drawn again" in said
    assert json.loads(run("inspect", bundle, "--json").stdout)["judge"]["random"]["seed"] == 3


def test_a_bundle_is_verified_against_the_weights_drawn_again(bundle: Path):
    report = txl.verify(bundle, segments=8)
    assert report.passed and report.max_abs < 1e-4
    assert [n.startswith("the weights are random") for n in report.notes] == [True]


def test_other_weights_are_not_the_judge(bundle: Path, tmp_path: Path):
    """That it is drawn from the recorded seed is what the test before rests on."""
    manifest = Bundle.open(bundle).manifest
    changed = dataclasses.replace(manifest, judge={**manifest.judge, "random": {"name": NAME, "seed": 4}})
    other = dataclasses.replace(Bundle.open(bundle), manifest=changed)
    assert not txl.verify(other, segments=2).passed


@pytest.mark.parametrize("random", [{"name": NAME}, {"name": 1, "seed": 1}, {"name": NAME, "seed": "1"}, 5])
def test_damaged_notes_of_random_weights_are_one_line(bundle: Path, tmp_path: Path, random: Any):
    value = json.loads((bundle / MANIFEST).read_text())
    value["judge"]["random"] = random
    (tmp_path / MANIFEST).write_text(json.dumps(value))
    with pytest.raises(txl.BundleError, match=r"is damaged .*export again$"):
        Bundle.open(tmp_path)
    native.save(tmp_path / "m", txl.random_checkpoint(NAME))
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"random": random}))
    with pytest.raises(txl.CheckpointError, match="random is damaged"):
        txl.load_checkpoint(tmp_path / "m")


def test_a_saved_checkpoint_stays_random(tmp_path: Path):
    saved = native.save(tmp_path / "m", txl.random_checkpoint(NAME, 6))
    loaded = txl.load_checkpoint(saved)
    assert loaded.random == txl.random_checkpoint(NAME, 6).random and "seed 6" in loaded.notes[0]
    assert txl.Engine.load(loaded).info.notes == loaded.notes


def test_the_command_line_draws_weights(run: Run, tmp_path: Path):  # noqa: F811
    options = ("--segment-lens", "4", "--no-cover", "--json", "--clamp-len", 3)
    result = run("export", NAME, "--random-weights", 7, "-o", tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"][0].startswith("the weights are random (seed 7)")
    m = Bundle.open(tmp_path / "out").manifest
    assert (m.config.clamp_len, m.random and m.random.seed, m.vocabulary) == (3, 7, None)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((NAME,), f"{NAME} is a configuration, which has no weights: give a checkpoint, or export random weights with"),
        (("tiny", "--random-weights", 1), f"no configuration is named 'tiny': use {NAME}"),
        ((NAME, "--random-weights", "-1"), "seed of random weights is -1"),
        ((NAME, "--random-weights", 1, "--origin", "native"), f"random weights have the origin of {NAME}, no voc"),
        ((NAME, "--random-weights", 1, "--vocabulary", "bytes"), f"random weights have the origin of {NAME}, no v"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(run: Run, tmp_path: Path, args: tuple[str, ...], says: str):  # noqa: F811
    result = run("export", *args, "-o", tmp_path / "out")
    assert result.exit_code == 2 and result.stderr.startswith(f"error: {says}")
    assert result.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["score", "generate", "bench"])
def test_other_verbs_need_weights(run: Run, verb: str):  # noqa: F811
    result = run(verb, NAME, *(["README.md"] if verb == "score" else []))
    assert result.exit_code == 2 and f"{NAME} is a configuration, which has no weights" in result.stderr


def test_adapters_are_for_trained_weights(run: Run, tmp_path: Path):  # noqa: F811
    asked = run("export", NAME, "-o", tmp_path / "b", "--random-weights", 0, "--adapter", tmp_path / "none")
    assert asked.exit_code == 2 and "no adapter: leave out --adapter" in asked.stderr and not list(tmp_path.iterdir())
