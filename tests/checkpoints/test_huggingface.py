"""Hugging Face folders, written here by hand: names, aliases, defaults, refusals. Needs no transformers."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.helpers import random_weights, tiny_config
from txl_export import load_checkpoint
from txl_export.checkpoints import detect_origin
from txl_export.checkpoints.huggingface import parse_config
from txl_export.checkpoints.upstream import _check_frequencies
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError, ConfigError
from txl_export.weights import count_parameters

TIED = (False, True, True)
BASE = tiny_config(cutoffs=(9, 17), div_val=2, tie_projs=TIED)
PLAIN = tiny_config(cutoffs=(9, 17), d_embed=10, tie_projs=(True, False, True))


def config_json(config: ModelConfig, **changes):
    names = ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val", "mem_len")
    value = {n: getattr(config, n) for n in (*names, "clamp_len", "same_length", "untie_r", "pre_lnorm")}
    value |= {"model_type": "transfo-xl", "cutoffs": list(config.cutoffs), "tie_projs": list(config.tie_projs)}
    return value | {"tie_word_embeddings": config.tie_weight} | changes


def their_tensors(config: ModelConfig, weights=None) -> dict[str, np.ndarray]:
    """A model's tensors under Hugging Face's names, shared ones under all of their names."""
    w, out, t = weights or random_weights(config), {}, "transformer."
    for n in range(config.n_layer):
        a, f = f"layers.{n}.attention.", f"layers.{n}.feed_forward."
        out[f"{t}layers.{n}.dec_attn.qkv_net.weight"] = np.concatenate([w[a + x] for x in ("W_q", "W_kE", "W_v")])
        out[f"{t}layers.{n}.dec_attn.r_net.weight"] = w[a + "W_kR"]
        out[f"{t}layers.{n}.dec_attn.o_net.weight"] = w[a + "W_o"]
        for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
            out[f"{t}layers.{n}.dec_attn.{theirs}"] = w[a + ours if config.untie_r else ours]
            if not config.untie_r:
                out[t + theirs] = w[ours]
        for ours, theirs in (("W_1", "0.weight"), ("b_1", "0.bias"), ("W_2", "3.weight"), ("b_2", "3.bias")):
            out[f"{t}layers.{n}.pos_ff.CoreNet.{theirs}"] = w[f + ours]
        for part in ("weight", "bias"):
            out[f"{t}layers.{n}.dec_attn.layer_norm.{part}"] = w[f"{a}norm.{part}"]
            out[f"{t}layers.{n}.pos_ff.layer_norm.{part}"] = w[f"{f}norm.{part}"]
    if config.n_tails:
        out["crit.cluster_weight"], out["crit.cluster_bias"] = w["softmax.cluster_weight"], w["softmax.cluster_bias"]
    tables = len(config.cutoffs) + 1 if config.div_val > 1 else 1
    for i in range(tables):
        out[f"{t}word_emb.emb_layers.{i}.weight"] = w[f"embedding.tables.{i}"]
        if config.has_projs:
            out[f"{t}word_emb.emb_projs.{i}"] = w[f"embedding.projs.{i}"]
        owner = "embedding.tables" if config.tie_weight else "softmax.weights"
        out[f"crit.out_layers.{i}.weight"] = w[f"{owner}.{i}"]
        out[f"crit.out_layers.{i}.bias"] = w[f"softmax.biases.{i}"]
    for i, tied in enumerate(config.tie_projs if config.has_projs else ()):
        table = i if config.div_val > 1 else 0
        out[f"crit.out_projs.{i}"] = w[f"embedding.projs.{table}" if tied else f"softmax.projs.{i}"]
    out[t + "pos_emb.inv_freq"] = (1 / 10000 ** (np.arange(0, config.d_model, 2) / config.d_model)).astype(np.float32)
    return out


def write(folder: Path, config: ModelConfig, tensors, binary=False, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(config, **changes)))
    if binary:
        torch.save({n: torch.from_numpy(np.array(w)) for n, w in tensors.items()}, folder / "pytorch_model.bin")
    else:
        save_file({n: np.ascontiguousarray(w) for n, w in tensors.items()}, folder / "model.safetensors")
    return folder


def refused(path, *words, error=CheckpointError):
    with pytest.raises(error) as e:
        load_checkpoint(path)
    assert len(str(e.value).splitlines()) == 1
    for word in words:
        assert word in str(e.value)
    return str(e.value)


def assert_loads_as(folder, config, weights):
    loaded = load_checkpoint(folder)
    assert loaded.config == config and loaded.origin == "huggingface"
    assert set(loaded.weights) == set(weights)
    for name, w in weights.items():
        assert loaded.weights[name].dtype == np.float32
        assert np.array_equal(loaded.weights[name], w), name


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    "config",
    [BASE, PLAIN, tiny_config(cutoffs=(9, 17), div_val=2, tie_weight=False, untie_r=True, clamp_len=3)],
    ids=["div", "plain", "untied"],
)
def test_every_tensor_finds_its_place(tmp_path, config, binary):
    weights = random_weights(config)
    folder = write(tmp_path / "x", config, their_tensors(config, weights), binary, dropout=0.0)
    assert_loads_as(folder, config, weights)
    assert detect_origin(folder) == ("huggingface", 'config.json says model_type "transfo-xl"')
    assert load_checkpoint(folder).dialect == Dialect(initial_memory="zeros")
    assert load_checkpoint(folder, overrides={"initial_memory": "empty"}).dialect == Dialect()


SHARED = {
    "u": (BASE, ["transformer.r_w_bias", *(f"transformer.layers.{n}.dec_attn.r_w_bias" for n in (0, 1))]),
    "v": (BASE, ["transformer.r_r_bias", *(f"transformer.layers.{n}.dec_attn.r_r_bias" for n in (0, 1))]),
    "table": (BASE, ["transformer.word_emb.emb_layers.1.weight", "crit.out_layers.1.weight"]),
    "proj": (BASE, ["transformer.word_emb.emb_projs.2", "crit.out_projs.2"]),
    "one proj": (PLAIN, ["transformer.word_emb.emb_projs.0", "crit.out_projs.0", "crit.out_projs.2"]),
}
ALIASES = [(case, alias) for case, (_, aliases) in SHARED.items() for alias in aliases]


@pytest.mark.parametrize(("case", "alias"), ALIASES)
def test_shared_tensors_under_any_one_name_or_differing(tmp_path, case, alias):
    config, aliases = SHARED[case]
    weights = random_weights(config)
    tensors = their_tensors(config, weights)
    only = {n: w for n, w in tensors.items() if n == alias or n not in aliases}
    assert_loads_as(write(tmp_path / "one", config, only, dropout=0.0), config, weights)
    none = {n: w for n, w in tensors.items() if n not in aliases}
    refused(write(tmp_path / "none", config, none), f"lacks {aliases[0]}")
    differing = tensors | {alias: tensors[alias] + np.float32(1e-6)}
    refused(write(tmp_path / "two", config, differing), "differ", "the config shares them", alias)


@pytest.mark.parametrize("name", sorted(their_tensors(tiny_config(cutoffs=(9, 17), div_val=2, untie_r=True))))
def test_a_missing_or_misshaped_tensor(tmp_path, name):
    config = tiny_config(cutoffs=(9, 17), div_val=2, untie_r=True, tie_weight=False)
    tensors = their_tensors(config)
    shorter = tensors | {name: tensors[name][:-1].copy()}
    message = refused(write(tmp_path / "short", config, shorter), "model.safetensors" if "qkv" in name else "")
    assert "expected" in message or "inv_freq" in message
    del tensors[name]
    folder = write(tmp_path / "missing", config, tensors)
    if "inv_freq" in name:
        load_checkpoint(folder)
    else:
        refused(folder, f"lacks {name}")


def test_extra_tensors_and_nan(tmp_path):
    tensors = their_tensors(BASE)
    folder = write(tmp_path / "x", BASE, tensors | {"transformer.r_emb": np.zeros(3, np.float32)})
    refused(folder, "unexpected transformer.r_emb")
    tensors["transformer.layers.1.dec_attn.qkv_net.weight"][15, 3] = np.nan
    refused(write(tmp_path / "x", BASE, tensors), "layers.1.attention.W_kE holds NaN or Inf")
    refused(write(tmp_path / "y", BASE, tensors, binary=True), "layers.1.attention.W_kE holds NaN or Inf")


def test_other_frequencies(tmp_path):
    tensors = their_tensors(BASE)
    for foreign in (tensors["transformer.pos_emb.inv_freq"] * 1.01, np.ones(3, np.float32)):
        folder = write(tmp_path / "x", BASE, tensors | {"transformer.pos_emb.inv_freq": foreign})
        refused(folder, "inv_freq", "positional encoding")
    # Half precision rounds them, and so much is forgiven, but only to values that half precision has.
    for d_model in (16, 410, 1024):
        config = tiny_config(d_model=d_model)
        exact = torch.tensor(1 / 10000 ** (np.arange(0, d_model, 2) / d_model))
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            found = exact.to(dtype).to(torch.float32).numpy()
            _check_frequencies(config, found, tmp_path)
            with pytest.raises(CheckpointError, match="inv_freq"):
                _check_frequencies(config, found * np.float32(1.0011), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_of_pytorch_files(tmp_path, dtype):
    config = BASE
    folder = write(tmp_path / "x", config, {}, binary=True)
    tensors = {n: torch.from_numpy(w).to(dtype) for n, w in their_tensors(config).items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    loaded = load_checkpoint(folder)
    assert all(w.dtype == np.float32 for w in loaded.weights.values())
    expected = tensors["crit.cluster_weight"].float().numpy()
    assert np.array_equal(loaded.weights["softmax.cluster_weight"], expected)


def test_parameters_and_ordered_dicts_and_old_files_load(tmp_path):
    from collections import OrderedDict

    weights = random_weights(BASE)
    folder = write(tmp_path / "x", BASE, {}, binary=True, dropout=0.0)
    parameters = OrderedDict(
        (n, torch.nn.Parameter(torch.from_numpy(w))) for n, w in their_tensors(BASE, weights).items()
    )
    for new_format in (True, False):
        torch.save(parameters, folder / "pytorch_model.bin", _use_new_zipfile_serialization=new_format)
        assert_loads_as(folder, BASE, weights)


def test_safetensors_win_over_bin(tmp_path):
    weights = random_weights(BASE)
    folder = write(tmp_path / "x", BASE, their_tensors(BASE, weights), dropout=0.0)
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    assert_loads_as(folder, BASE, weights)


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("how", ["torch", "legacy", "pickle", "inside"])
def test_code_in_a_pickle_is_refused_and_never_run(tmp_path, how):
    folder, witness = write(tmp_path / "x", BASE, {}, binary=True), tmp_path / "witness"
    file = folder / "pytorch_model.bin"
    if how == "pickle":
        file.write_bytes(pickle.dumps(Payload(witness), protocol=2))
    else:
        value = {"a": torch.zeros(1), "b": Payload(witness)} if how == "inside" else Payload(witness)
        torch.save(value, file, _use_new_zipfile_serialization=how != "legacy")
    words = ["no file of torch.save"] if how == "pickle" else ["system", "was not run"]
    message = refused(folder, "pytorch_model.bin", *words)
    assert "weights_only" not in message  # torch's own text says how to run it
    assert not witness.exists()
    if how != "pickle":  # the payload is live: without the safe reader it would run
        torch.load(file, weights_only=False)  # noqa: TID251 - this test's own file
        assert witness.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_other_pickles_are_refused(tmp_path, protocol):
    folder = write(tmp_path / "x", BASE, {}, binary=True)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Path("x")}, protocol=protocol))
    refused(folder, "pytorch_model.bin")


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04junk", b"\x80\x02}."])
def test_garbage_bins(tmp_path, data):
    folder = write(tmp_path / "x", BASE, {}, binary=True)
    (folder / "pytorch_model.bin").write_bytes(data)
    refused(folder, str(folder))


@pytest.mark.parametrize(
    "value",
    [
        {"state_dict": {"a": torch.zeros(1)}},
        [torch.zeros(1)],
        torch.zeros(1),
        {"a": torch.zeros(2, 2).to_sparse()},
        {"a": torch.zeros(2, dtype=torch.complex64)},
        {"a": torch.zeros(2, device="meta")},
    ],
    ids=["nested", "list", "tensor", "sparse", "complex", "meta"],
)
def test_bins_that_hold_something_else(tmp_path, value):
    folder = write(tmp_path / "x", BASE, {}, binary=True)
    torch.save(value, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "expected")


def test_a_cut_bin(tmp_path):
    folder = write(tmp_path / "x", BASE, their_tensors(BASE), binary=True)
    path = folder / "pytorch_model.bin"
    data = path.read_bytes()
    for keep in (10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        refused(folder, "pytorch_model.bin")


def test_no_weights(tmp_path):
    folder = write(tmp_path / "x", BASE, {})
    (folder / "model.safetensors").unlink()
    refused(folder, "model.safetensors or", "pytorch_model.bin")


def test_defaults_are_those_of_transfoxl():
    config, dialect = parse_config({"model_type": "transfo-xl"})
    assert config == ModelConfig(
        vocab_size=267735, n_layer=18, n_head=16, d_model=1024, d_head=64, d_inner=4096, d_embed=1024,
        cutoffs=(20000, 40000, 200000), div_val=4, tie_projs=(False, True, True, True), untie_r=True, mem_len=1600,
        clamp_len=1000, same_length=True, dropout=0.1,
    )  # fmt: skip
    assert dialect == Dialect(initial_memory="zeros")
    assert round(count_parameters(config) / 1e6) == 285


def test_other_spellings():
    config, _ = parse_config({"n_token": 300, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3,
                              "cutoffs": [100, 200], "proj_share_all_but_first": False})  # fmt: skip
    assert (config.vocab_size, config.d_model, config.n_head, config.n_layer) == (300, 64, 2, 3)
    assert config.tie_projs == (False, False, False)
    config, _ = parse_config({"proj_share_all_but_first": False, "tie_projs": [True] * 4})
    assert config.tie_projs == (True,) * 4
    config, _ = parse_config({"tie_weight": False})  # not read by transformers 4.35.2
    assert config.tie_weight


def test_defaults_agree_with_transformers():
    from tests.huggingface_models import transformers

    for changes in (
        {}, {"proj_share_all_but_first": False}, {"cutoffs": [5]}, {"n_token": 300000}, {"tie_projs": [True] * 4},
        {"num_hidden_layers": 2}, {"tie_word_embeddings": False}, {"hidden_size": 512},
    ):  # fmt: skip
        theirs = transformers.TransfoXLConfig(**changes)
        assert parse_config(dict(changes)) == parse_config(theirs.to_dict())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"attn_type": 1}, "attn_type"),
        ({"attn_type": 2}, "attn_type"),
        ({"ext_len": 4}, "ext_len is 4, expected 0"),
        ({"cutoffs": None}, "cutoffs"),
        ({"cutoffs": 5}, "cutoffs"),
        ({"cutoffs": ["5"]}, "cutoffs"),
        ({"tie_projs": "all"}, "tie_projs"),
        ({"tie_projs": [True]}, "tie_projs"),
        ({"layer_norm_epsilon": "1e-5"}, "layer_norm_eps"),
        ({"tie_word_embeddings": None}, "tie_weight"),
        ({"mem_len": None}, "mem_len"),
        ({"d_model": "16"}, "d_model"),
        ({"proj_share_all_but_first": "no", "tie_projs": [0]}, "tie_projs"),
    ],
    ids=repr,
)
def test_configs_that_cannot_be(tmp_path, changes, word):
    folder = write(tmp_path / "x", BASE, {}, **changes)
    refused(folder, f"{folder / 'config.json'}: {word}", error=ConfigError)


def test_detection_of_other_models(tmp_path):
    for model_type in ("gpt2", None, ["transfo-xl"]):
        refused(write(tmp_path / "x", BASE, {}, model_type=model_type), "native", "huggingface")
