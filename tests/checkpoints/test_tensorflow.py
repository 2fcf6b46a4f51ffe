"""The origin `tensorflow`: sizes from shapes, names, what no file says. Bundles are written by the tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.checkpoints.tensorflow_bundles import their_tensors, write_bundle
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.helpers import random_ids, random_weights, tiny_config
from txl_export import Engine, TransformerXL, load_checkpoint
from txl_export.checkpoints import detect_origin
from txl_export.config import Dialect
from txl_export.errors import CheckpointError

EVALUATION = {"mem_len": 6, "clamp_len": -1, "same_length": False}
ONE_TABLE = tiny_config(cutoffs=(9, 17), d_embed=10, tie_projs=(False, True, False), untie_r=True)
CONFIGS = {
    "plain": tiny_config(tie_projs=(True,)),
    "plain, projected": tiny_config(d_embed=10, tie_projs=(True,)),
    "one table": ONE_TABLE,
    "one table, no projections": tiny_config(cutoffs=(9, 17), tie_projs=(True, True, True)),
    "tables": tiny_config(cutoffs=(9, 17), div_val=2, tie_projs=(False, True, True)),
    "narrow tables": tiny_config(cutoffs=(9, 17), d_embed=13, div_val=3, tie_projs=(True, True, False), untie_r=True),
}
# Kept by optimizers and the training loop beside the model.
REST = {
    "global_step": np.int64(7),
    "beta1_power": np.float32(0.9),
    "transformer/r_w_bias/Adam": np.ones((2, 6), np.float32),
    "transformer/r_w_bias/Adam_1": np.ones((2, 6), np.float32),
    "transformer/layer_0/ff/layer_1/kernel/Adam": np.ones((16, 24), np.float32),
}


def written(folder: Path, config, weights=None, same_dim=True, shards=1, name="model.ckpt", **more) -> Path:
    tensors = their_tensors(config, weights or random_weights(config), same_dim)
    return write_bundle(folder / name, tensors | {n: np.asarray(x) for n, x in more.items()}, shards)


def refused(path: Path, *words: str, **options) -> None:
    with pytest.raises(CheckpointError) as e:
        load_checkpoint(path, **options)
    assert "\n" not in str(e.value)
    for word in words:
        assert word in str(e.value)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_architecture_and_tensors_come_from_the_file_alone(tmp_path, config):
    weights = random_weights(config)
    written(tmp_path, config, weights, shards=2, **REST)
    loaded = load_checkpoint(tmp_path, overrides=EVALUATION)
    assert loaded.config == config and loaded.origin == "tensorflow" and not loaded.notes
    assert loaded.dialect == Dialect("zeros", 1, "forward", 1e-12)
    assert loaded.weights.keys() == weights.keys()
    for name, w in weights.items():
        assert loaded.weights[name].dtype == np.float32 and np.array_equal(loaded.weights[name], w), name


def test_a_projection_that_is_left_out_changes_nothing(tmp_path):
    config = tiny_config(cutoffs=(9, 17), div_val=2, tie_projs=(False, True, True))
    weights = random_weights(config)
    for which in ("embedding", "softmax"):
        weights[f"{which}.projs.0"] = np.eye(16, dtype=np.float32)
    written(tmp_path / "with", config, weights)
    written(tmp_path / "without", config, weights, same_dim=False)
    ids = torch.from_numpy(random_ids(config, 2, 9))
    models = (TransformerXL.from_checkpoint(load_checkpoint(tmp_path / n)) for n in ("with", "without"))
    given, left_out = (model(ids)[0] for model in models)
    assert torch.equal(given, left_out)


def test_prefix_files_and_folder_name_the_same_checkpoint(run, tmp_path):  # noqa: F811 - the fixture
    prefix = written(tmp_path, ONE_TABLE)
    index = tmp_path / "model.ckpt.index"
    for path in (tmp_path, prefix, index, tmp_path / "model.ckpt.data-00000-of-00001"):
        assert detect_origin(path) == ("tensorflow", "model.ckpt.index is the index of a TensorFlow checkpoint")
        found = load_checkpoint(path)
        assert np.array_equal(
            found.weights["layers.0.attention.u"], load_checkpoint(index).weights["layers.0.attention.u"]
        )
        assert found.path is not None and found.path.exists()
    result = run("inspect", prefix, "--json")
    assert json.loads(result.stdout)["origin"] == "tensorflow"
    refused(tmp_path / "model.ckp", "does not exist")
    refused(tmp_path / "model.ckp", "does not exist", origin="tensorflow")


def test_the_newest_of_several(tmp_path):
    first, second = (random_weights(ONE_TABLE, seed) for seed in (1, 2))
    written(tmp_path, ONE_TABLE, first, name="model.ckpt-10")
    written(tmp_path, ONE_TABLE, second, name="model.ckpt-9")
    refused(tmp_path, "holds 2 checkpoints", "name one")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n')
    name = "embedding.tables.0"
    assert np.array_equal(load_checkpoint(tmp_path).weights[name], second[name])
    assert np.array_equal(load_checkpoint(tmp_path / "model.ckpt-10").weights[name], first[name])


def test_other_files_with_that_ending_mean_nothing(tmp_path):
    (tmp_path / "search.index").write_bytes(b"something else")
    refused(tmp_path, "is no native or")
    refused(tmp_path / "search.index", "search.index is no readable TensorFlow checkpoint")
    written(tmp_path, ONE_TABLE)
    assert load_checkpoint(tmp_path).origin == "tensorflow"


def test_what_no_file_says_is_told(tmp_path):
    written(tmp_path, ONE_TABLE)
    loaded = load_checkpoint(tmp_path)
    assert (loaded.config.mem_len, loaded.config.clamp_len, loaded.config.same_length) == (70, -1, False)
    (note,) = loaded.notes
    assert "mem_len 70, clamp_len -1, same_length False" in note and "--clamp-len" in note
    (note,) = load_checkpoint(tmp_path, overrides={"clamp_len": 5, "same_length": True}).notes
    assert "mem_len 70" in note and "clamp" not in note and "same" not in note


def test_configuration_beside_it(tmp_path):
    written(tmp_path, ONE_TABLE)
    beside = {"mem_len": 3, "test_mem_len": 8, "test_clamp_len": 400, "n_layer": 2, "cutoffs": [0, 9, 17, 29]}
    (tmp_path / "config.json").write_text(json.dumps(beside | {"same_length": True, "warmup_steps": 4000}))
    loaded = load_checkpoint(tmp_path)
    assert (loaded.config.mem_len, loaded.config.clamp_len, loaded.config.same_length) == (8, 400, True)
    assert not loaded.notes
    (tmp_path / "config.json").write_text(json.dumps(beside | {"n_layer": 3}))
    refused(tmp_path, "n_layer 3", "the tensors 2")
    (tmp_path / "config.json").unlink()
    (tmp_path / "corpus-info.json").write_text(json.dumps({"vocab_size": 29, "cutoffs": [0, 9, 18, 29]}))
    refused(tmp_path, "[9, 18]", "[9, 17]")


NAMES = sorted(their_tensors(ONE_TABLE, random_weights(ONE_TABLE)))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_or_misshaped_tensor(tmp_path, name):
    tensors = their_tensors(ONE_TABLE, random_weights(ONE_TABLE))
    rest = {n: x for n, x in tensors.items() if n != name}
    # Without a projection of its own the softmax shares the embedding's.
    gone = [] if name.endswith("/proj") else [{}]
    for other in (*gone, {name: tensors[name][..., :-1]}, {name: tensors[name][None, None]}):
        write_bundle(tmp_path / "m", rest | other)
        refused(tmp_path)


def test_other_variables_in_the_model_are_refused(tmp_path):
    written(tmp_path, ONE_TABLE, **{"transformer/layer_0/rel_attn/gate/kernel": np.ones((16, 16), np.float32)})
    refused(tmp_path, "unexpected transformer/layer_0/rel_attn/gate/kernel")


def test_another_model_is_refused(tmp_path):
    write_bundle(tmp_path / "bert", {"bert/embeddings/word_embeddings": np.ones((3, 4), np.float32)})
    refused(tmp_path, "lacks transformer/r_w_bias", "no Transformer-XL")


def test_widths_that_no_div_val_gives(tmp_path):
    config = CONFIGS["tables"]
    weights = random_weights(config)
    weights["embedding.tables.2"] = weights["embedding.tables.2"][:, :3]
    written(tmp_path, config, weights)
    refused(tmp_path, "[16, 8, 3]", "div_val")


def test_streams_start_from_zeros_and_see_one_key_more(tmp_path):
    """With M = 3 and same_length a query sees itself and 3 keys: another dialect would give other numbers."""
    config = tiny_config(tie_projs=(True,))
    written(tmp_path, config)
    overrides = {"mem_len": 3, "same_length": True}
    answers = []
    for more in ({}, {"window_extra": 0}, {"initial_memory": "empty"}, {"layer_norm_eps": 1e-5}):
        judge = Engine.load(load_checkpoint(tmp_path, overrides=overrides | more), backend="eager")
        session = judge.session(batch_size=1)
        answers.append(np.concatenate([session.feed(random_ids(config, 1, 4, seed)) for seed in (0, 1)]))
    assert all(np.abs(answers[0] - other).max() > 1e-6 for other in answers[1:])
