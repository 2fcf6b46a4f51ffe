"""Checkpoints of NVIDIA's DeepLearningExamples, written here with torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints.test_kimiyoung import assert_same_weights, refused
from tests.checkpoints.torch_models import (
    CONFIGS,
    NVIDIA,
    importable,
    make,
    nvidia_checkpoint,
    nvidia_config,
    nvidia_state,
    save_nvidia,
    vocab_object,
)
from tests.helpers import random_weights, tiny_config
from txl_export import load_checkpoint
from txl_export.checkpoints import detect_origin
from txl_export.errors import ConfigError

DIV = CONFIGS["div"]


def saved(folder: Path, **changes) -> Path:
    return save_nvidia(folder / "checkpoint_best.pt", nvidia_checkpoint(DIV, random_weights(DIV), **changes))


@pytest.mark.parametrize("form", ["nvidia", "old nvidia"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_says_everything(tmp_path, form, name):
    path, weights = make(form, tmp_path / "checkpoint_best.pt", CONFIGS[name])
    loaded = load_checkpoint(tmp_path)
    assert (loaded.config, loaded.dialect, loaded.origin) == (CONFIGS[name], NVIDIA, "nvidia")
    assert loaded.path == path
    assert_same_weights(loaded.weights, weights)
    reason = "checkpoint_best.pt is a dict with model_config and model_state"
    assert detect_origin(path) == detect_origin(tmp_path) == ("nvidia", reason)


def test_evaluation_values_are_overridden(tmp_path):
    loaded = load_checkpoint(saved(tmp_path), overrides={"mem_len": 3, "clamp_len": 2, "same_length": True})
    assert (loaded.config.mem_len, loaded.config.clamp_len, loaded.config.same_length) == (3, 2, True)
    assert loaded.notes == ()
    (note,) = load_checkpoint(saved(tmp_path), overrides={"same_length": True}).notes
    assert "mem_len 6, clamp_len -1" in note and "same_length" not in note
    refused(saved(tmp_path), "'d_model' is 8", error=ConfigError, overrides={"d_model": 8})


def test_the_best_checkpoint_of_a_folder(tmp_path):
    make("nvidia", tmp_path / "checkpoint_last.pt")
    assert load_checkpoint(tmp_path).path == tmp_path / "checkpoint_last.pt"
    make("nvidia", tmp_path / "checkpoint_best.pt")
    assert load_checkpoint(tmp_path).path == tmp_path / "checkpoint_best.pt"


def test_projections_under_their_second_name(tmp_path):
    weights = random_weights(DIV)
    state = nvidia_state(DIV, weights)
    for i in range(3):  # either name will do, the first of them is not even used by the softmax
        del state[f"word_emb.emb_projs.{i}"]
    assert_same_weights(load_checkpoint(saved(tmp_path, model_state=state)).weights, weights)
    state = nvidia_state(DIV, weights)
    state["crit.shared_out_projs.0"] = state["crit.shared_out_projs.0"] + 1
    refused(saved(tmp_path, model_state=state), "crit.shared_out_projs.0", "differ")


def test_training_on_several_devices(tmp_path):
    state = {f"module.{n}": t for n, t in nvidia_state(DIV, random_weights(DIV)).items()}
    assert_same_weights(load_checkpoint(saved(tmp_path, model_state=state)).weights, random_weights(DIV))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_type": 2}, ["attn_type is 2"]),
        ({"ext_len": 3}, ["ext_len is 3", "checkpoint_best.pt: "]),
        ({"sample_softmax": 9}, ["sample_softmax is 9"]),
        ({"cutoffs": 5}, ["cutoffs is 5"]),
        ({"tie_projs": [True]}, ["tie_projs"]),
        ({"n_layer": 3}, ["layers.2"]),
        ({"d_head": 7}, ["qkv_net"]),
        ({"tie_weight": False}, ["lacks crit.out_layers_weights.0"]),
        ({"n_token": torch.zeros(1)}, ["vocab_size"]),
    ],
)
def test_configurations_that_do_not_fit(tmp_path, changes, words):
    path = saved(tmp_path, model_config=nvidia_config(DIV, **changes), vocab=None)
    refused(path, *words, error=Exception)


def test_incomplete_files(tmp_path):
    config = nvidia_config(DIV)
    del config["pre_lnorm"]
    refused(saved(tmp_path, model_config=config), "model_config lacks pre_lnorm")
    for name, value in (("model_config", None), ("model_state", {"a": 1}), ("model_state", [])):
        refused(saved(tmp_path, **{name: value}), "model_config and model_state, or a state dict")
    state = nvidia_state(DIV, random_weights(DIV))
    state["r_emb"] = torch.zeros(2)
    refused(saved(tmp_path, model_state=state), "unexpected r_emb")


def test_the_vocabulary_of_the_checkpoint(tmp_path):
    words = ["<eos>", *(f"tok{i}" for i in range(28))]
    loaded = load_checkpoint(saved(tmp_path))
    assert loaded.vocab.symbols == tuple(words) and len(loaded.notes) == 1  # on training values
    assert loaded.vocab.encode(b"tok3 tok0\n").tolist() == [4, 1, 0]
    assert load_checkpoint(saved(tmp_path, vocab=None)).vocab is None
    assert load_checkpoint(saved(tmp_path), vocabulary="none").vocab is None
    fewer = load_checkpoint(saved(tmp_path, vocab=vocab_object(words[:-1])))
    assert fewer.vocab.size == 28 and "28 words for the model's 29" in fewer.notes[0]
    for unusable in (vocab_object([]), vocab_object([b"bytes", "x"]), vocab_object([*words, "more"])):
        left_out = load_checkpoint(saved(tmp_path, vocab=unusable))
        assert left_out.vocab is None and "vocabulary is left out" in left_out.notes[0]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_model_state_alone(tmp_path, name, inside):
    """Saved without what is around it, it says as much as the shapes of its tensors do."""
    config, path = CONFIGS[name], tmp_path / "weights.pt"
    weights = random_weights(config)
    state = nvidia_state(config, weights)
    torch.save({"model_state": state, "epoch": 3} if inside else state, path)
    assert detect_origin(path)[0] == "nvidia"
    unsaid = {"pre_lnorm": config.pre_lnorm, "mem_len": 6, "clamp_len": config.clamp_len}
    if config.div_val == 1 and config.cutoffs:
        refused(path, "does not say cutoffs", "--set cutoffs=", error=ConfigError)
        unsaid["cutoffs"] = list(config.cutoffs)
    loaded = load_checkpoint(path, overrides=unsaid | {"same_length": config.same_length})
    assert loaded.config == dataclasses.replace(config, dropout=0.0, dropatt=0.0)
    assert (loaded.dialect, loaded.origin, loaded.notes) == (NVIDIA, "nvidia", ())
    assert_same_weights(loaded.weights, weights)


def test_defaults_for_what_a_model_state_does_not_say_are_told(tmp_path):
    state = nvidia_state(DIV, random_weights(DIV))
    for i in range(3):  # the projections under their second name alone
        del state[f"word_emb.emb_projs.{i}"]
    torch.save(state, tmp_path / "model.pt")
    (note,) = load_checkpoint(tmp_path).notes
    assert "pre_lnorm False, mem_len 512" in note and "--set pre_lnorm=..." in note
    refused(tmp_path, "'n_head' is 3", error=ConfigError, overrides={"n_head": 3})
    equal = tiny_config(div_val=2, tie_projs=(True,))  # one table and a projection between equal widths
    state = nvidia_state(equal, random_weights(equal))
    del state["word_emb.emb_projs.0"]
    torch.save(state, tmp_path / "model.pt")
    assert load_checkpoint(tmp_path).config.div_val == 2
    torch.save({**state, "r_emb": torch.zeros(2, 9)}, tmp_path / "model.pt")
    refused(tmp_path, "holds r_emb", "attn_type 1 or 3")


def openai_vocab() -> Any:
    """NVIDIA's vocabulary of byte pairs, with the tokenizer of `pytorch_transformers` in it."""
    tokenizer = type("GPT2Tokenizer", (), {"__module__": "pytorch_transformers.tokenization_gpt2"})()
    vars(tokenizer).update(encoder={"a": 0}, decoder={0: "a"}, bpe_ranks={("a", "b"): 0}, errors="replace", cache={})
    vars(tokenizer).update(byte_encoder={97: "a"}, pat=pytest.importorskip("regex").compile(r"'s| ?\p{L}+"))
    made = type("OpenAIVocab", (), {"__module__": "utils.vocabulary"})()
    vars(made).update(tokenizer=tokenizer, EOT=50256, max_size=None, vocab_file=None)
    return made


def test_a_vocabulary_of_byte_pairs_is_left_out(tmp_path):
    vocab, path = openai_vocab(), tmp_path / "checkpoint_best.pt"
    with importable({"OpenAIVocab": type(vocab), "GPT2Tokenizer": type(vocab.tokenizer)}):
        torch.save(nvidia_checkpoint(DIV, random_weights(DIV), vocab=vocab), path)
    loaded = load_checkpoint(path)
    assert loaded.vocab is None and loaded.origin == "nvidia"
    assert "OpenAIVocab" in loaded.notes[0] and "BPE is not supported" in loaded.notes[0]


def test_optimizer_state_is_not_read(tmp_path):
    moments = {i: {"exp_avg": torch.full((50, 50), np.nan)} for i in range(3)}
    load_checkpoint(saved(tmp_path, optimizer_state={"state": moments, 140234234234234: 1, 0.5: None}))
