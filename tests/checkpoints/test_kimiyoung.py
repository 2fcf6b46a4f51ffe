"""Modules and state dicts of the authors' PyTorch code, written here with torch."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import nn

from tests.checkpoints.torch_models import CONFIGS, KIMIYOUNG, kimiyoung_model, make, save_kimiyoung
from tests.helpers import random_weights, tiny_config
from txl_export import load_checkpoint
from txl_export.checkpoints import detect_origin
from txl_export.errors import CheckpointError, ConfigError

DIV = CONFIGS["div"]
DEEP = functools.reduce(lambda inner, _: (inner,), range(200), ())


def refused(path, *words, error=CheckpointError, **arguments):
    with pytest.raises(error) as e:
        load_checkpoint(path, **arguments)
    assert len(str(e.value).splitlines()) == 1 and len(str(e.value)) < 500
    for word in words:
        assert word in str(e.value)


def assert_same_weights(found, weights):
    assert set(found) == set(weights)
    for name, w in weights.items():
        assert found[name].dtype == np.float32 and np.array_equal(found[name], w), name


@pytest.mark.parametrize("form", ["module", "old module"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_module_says_everything(tmp_path, form, name):
    path, weights = make(form, tmp_path / "model.pt", CONFIGS[name])
    loaded = load_checkpoint(path)
    assert (loaded.config, loaded.dialect, loaded.origin) == (CONFIGS[name], KIMIYOUNG, "kimiyoung")
    assert loaded.path == path
    assert_same_weights(loaded.weights, weights)
    assert detect_origin(path) == ("kimiyoung", "model.pt holds the module mem_transformer.MemTransformerLM")


@pytest.mark.parametrize("form", ["state dict", "old state dict"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_state_dict_and_what_it_does_not_say(tmp_path, form, name):
    config = CONFIGS[name]
    path, weights = make(form, tmp_path / "any name", config)
    unsaid = {"pre_lnorm": config.pre_lnorm, "mem_len": 6, "clamp_len": config.clamp_len}
    if config.div_val == 1 and config.cutoffs:
        refused(path, "cutoffs", "--set", error=ConfigError)
        unsaid["cutoffs"] = list(config.cutoffs)
    loaded = load_checkpoint(path, overrides=unsaid | {"same_length": config.same_length})
    assert loaded.config == dataclasses.replace(config, dropout=0.0, dropatt=0.0)
    assert (loaded.dialect, loaded.origin, loaded.notes) == (KIMIYOUNG, "kimiyoung", ())
    assert_same_weights(loaded.weights, weights)
    assert "state dict" in detect_origin(path)[1]


def test_defaults_for_what_a_state_dict_does_not_say_are_told(tmp_path):
    path, _ = make("state dict", tmp_path / "model.pt")
    loaded = load_checkpoint(path)
    assert (loaded.config.pre_lnorm, loaded.config.mem_len, loaded.config.same_length) == (False, 512, False)
    (note,) = loaded.notes
    for part in ("pre_lnorm False", "mem_len 512", "clamp_len -1", "same_length False"):
        assert part in note
    (note,) = load_checkpoint(path, overrides={"mem_len": 7, "pre_lnorm": True}).notes
    assert "mem_len" not in note and "pre_lnorm" not in note and "clamp_len" in note


def test_what_was_given_is_blamed_and_not_the_file(tmp_path):
    path, _ = make("state dict", tmp_path / "model.pt", CONFIGS["one_proj"])
    refused(path, f"{path}: cutoffs is [99]", "; give another", error=ConfigError, overrides={"cutoffs": [99]})
    refused(path, "model.pt: cutoffs is 5", "; give another", error=ConfigError, overrides={"cutoffs": 5})


def test_what_the_file_says_cannot_be_overridden(tmp_path):
    for form in ("module", "state dict"):
        path, _ = make(form, tmp_path / form)
        refused(path, "'n_head' is 3", "has 2", error=ConfigError, overrides={"n_head": 3})
        assert load_checkpoint(path, overrides={"n_head": 2, "cutoffs": [9, 17]}).config.n_head == 2
    module, _ = make("module", tmp_path / "m")
    refused(module, "'pre_lnorm' is True", error=ConfigError, overrides={"pre_lnorm": True})
    assert "mem_len 6, clamp_len -1, same_length False: as it was trained" in load_checkpoint(module).notes[0]
    assert load_checkpoint(module, overrides={"mem_len": 3, "clamp_len": 2, "same_length": True}).notes == ()
    changed = load_checkpoint(module, overrides={"mem_len": 3, "clamp_len": 2, "window_extra": 1})
    assert (changed.config.mem_len, changed.config.clamp_len, changed.dialect.window_extra) == (3, 2, 1)


def test_folders(tmp_path):
    best, _ = make("module", tmp_path / "model.pt")
    other, _ = make("state dict", tmp_path / "state.pt")
    (tmp_path / "log.txt").write_text("x")
    assert load_checkpoint(tmp_path).path == best
    best.unlink()
    assert load_checkpoint(tmp_path).path == other
    make("module", tmp_path / "second.pt")
    refused(tmp_path, "2 .pt files", "such as second.pt")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("attn_type", 1),
        ("attn_type", 2),
        ("attn_type", 3),
        ("ext_len", 4),
        ("sample_softmax", 100),
        ("n_layer", "2"),
        ("d_model", None),
        ("same_length", 1),
        ("n_layer", "x" * 100_000),
        ("d_head", DEEP),
    ],
)
def test_models_that_are_refused(tmp_path, attribute, value):
    model = kimiyoung_model(DIV, random_weights(DIV), **{attribute: value})
    path = save_kimiyoung(tmp_path / "model.pt", model)
    refused(path, f"{path}: {attribute} is", "expected", "the file is damaged, or its model", error=ConfigError)


def test_the_epsilon_is_read_and_must_be_one(tmp_path):
    model = kimiyoung_model(DIV, random_weights(DIV), eps=1e-6)
    path = save_kimiyoung(tmp_path / "model.pt", model)
    assert load_checkpoint(path).dialect.layer_norm_eps == 1e-6
    model.layers[1].pos_ff.layer_norm.eps = 1e-5
    refused(save_kimiyoung(path, model), "epsilons")
    for odd in ([1e-5], DEEP, None, "1e-5"):
        for m in model.modules():
            if isinstance(m, nn.LayerNorm):
                m.eps = odd
        refused(save_kimiyoung(path, model), "epsilon")


def test_missing_extra_misshaped_and_broken_tensors(tmp_path):
    def saved(change):
        model = kimiyoung_model(DIV, random_weights(DIV))
        change(model)
        return save_kimiyoung(tmp_path / "model.pt", model)

    refused(saved(lambda m: delattr(m.layers[1].dec_attn, "r_net")), "lacks layers.1.dec_attn.r_net.weight")
    refused(saved(lambda m: delattr(m, "crit")), "lacks crit.")
    refused(saved(lambda m: delattr(m, "word_emb")), "word_emb")
    refused(saved(lambda m: m.register_buffer("r_emb", torch.zeros(2))), "unexpected r_emb")
    refused(saved(lambda m: setattr(m, "r_w_bias", nn.Parameter(torch.zeros(3, 2)))), "u is [3, 2]", "expected [2, 6]")
    for factor in (2, 1e30):
        refused(saved(lambda m, factor=factor: m.pos_emb.inv_freq.mul_(factor)), "inv_freq")
    with torch.no_grad():
        refused(saved(lambda m: m.layers[0].dec_attn.o_net.weight[0].fill_(torch.nan)), "W_o holds NaN or Inf")


def test_what_training_wraps_around_a_model(tmp_path):
    model = kimiyoung_model(DIV, random_weights(DIV))
    for value in (nn.DataParallel(model), nn.DataParallel(model).state_dict()):
        loaded = load_checkpoint(save_kimiyoung(tmp_path / "model.pt", value))
        assert_same_weights(loaded.weights, random_weights(DIV))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(tmp_path, dtype):
    model = kimiyoung_model(DIV, random_weights(DIV)).to(dtype)
    expected = model.crit.cluster_weight.detach().float().numpy()
    for form in (True, False):
        loaded = load_checkpoint(save_kimiyoung(tmp_path / f"{form}.pt", model, form))
        assert np.array_equal(loaded.weights["softmax.cluster_weight"], expected)
        assert all(w.dtype == np.float32 for w in loaded.weights.values())
        assert loaded.config.tie_projs == DIV.tie_projs


def test_equal_copies_count_as_shared(tmp_path):
    state = {n: t.clone() for n, t in kimiyoung_model(DIV, random_weights(DIV)).state_dict().items()}
    loaded = load_checkpoint(save_kimiyoung(tmp_path / "model.pt", state))
    assert (loaded.config.tie_weight, loaded.config.tie_projs) == (True, DIV.tie_projs)
    state["crit.out_layers.1.weight"] += 1
    loaded = load_checkpoint(save_kimiyoung(tmp_path / "other.pt", state))
    assert not loaded.config.tie_weight
    assert np.array_equal(loaded.weights["softmax.weights.1"], state["crit.out_layers.1.weight"].numpy())


def test_state_dicts_that_are_refused(tmp_path):
    state = kimiyoung_model(DIV, random_weights(DIV)).state_dict()
    path = save_kimiyoung(tmp_path / "model.pt", state)
    for given in ({"cutoffs": 5}, {"cutoffs": [9, "17"]}, {"mem_len": "x"}, {"pre_lnorm": 1}, {"depth": 3}):
        refused(path, next(iter(given)), error=ConfigError, overrides=given)
    for value in (5, [5], "x", [30]):
        plain = kimiyoung_model(CONFIGS["one_proj"], random_weights(CONFIGS["one_proj"])).state_dict()
        refused(save_kimiyoung(path, plain), error=(ConfigError, CheckpointError), overrides={"cutoffs": value})
    odd = {"r_emb": "attn_type 1 or 3", "r_bias": "attn_type 1", "layers.0.dec_attn.kv_net.weight": "attn_type 2 or 3"}
    for name, words in odd.items():
        refused(save_kimiyoung(path, {**state, name: torch.zeros(2, 9)}), f"holds {name}", words, "expected 0")
    refused(save_kimiyoung(path, {**state, "r_w_bias": torch.zeros(3)}), "r_w_bias is [3]", "2 dimensions")
    refused(save_kimiyoung(path, {**state, "word_emb.emb_layers.0.weight": torch.zeros(0, 1 << 40)}))
    del state["r_w_bias"]
    refused(save_kimiyoung(path, state), "lacks r_w_bias")


def test_embedding_tables_that_fit_no_div_val(tmp_path):
    state = kimiyoung_model(DIV, random_weights(DIV)).state_dict()
    for width in (7, 0, 16, 17):
        state["word_emb.emb_layers.1.weight"] = torch.zeros(8, width)
        refused(save_kimiyoung(tmp_path / "model.pt", state), f"[16, {width}, 4]", "div_val")


@pytest.mark.parametrize("value", [[1], {"a": 1}, {}, torch.zeros(3), {"a": torch.zeros(1)}, nn.Linear(2, 2)])
def test_files_of_something_else(tmp_path, value):
    path = save_kimiyoung(tmp_path / "model.pt", value)
    refused(path, "is no native or", ".pt file")
    refused(path, "expected a module", origin="kimiyoung") if value != {"a": torch.zeros(1)} else None


def test_rounded_div_val(tmp_path):
    config = tiny_config(cutoffs=(9, 17), div_val=3, d_embed=11)
    path, weights = make("state dict", tmp_path / "model.pt", config)
    loaded = load_checkpoint(path)
    assert (loaded.config.div_val, loaded.config.cutoffs) == (3, (9, 17))
    assert_same_weights(loaded.weights, weights)
