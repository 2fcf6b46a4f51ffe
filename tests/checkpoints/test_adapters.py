"""Adapters in PEFT's format: where each tensor goes, by which arithmetic, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from tests.bundles import one_line
from tests.checkpoints.peft_adapters import NETS, PREFIX, delta, low_rank, module_names, save_adapter
from tests.helpers import random_weights, tiny_config
from txl_export import load_checkpoint
from txl_export.checkpoints import Checkpoint, native
from txl_export.checkpoints.adapters import described, updates
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError

PLAIN = tiny_config()
DIV = tiny_config(cutoffs=(9, 17), div_val=2, tie_projs=(False, True, True))
PROJ = tiny_config(cutoffs=(9, 17), d_embed=10, tie_projs=(True, False, True))
QKV = "layers.1.dec_attn.qkv_net"
# Matrices that each module of layer 1 is in the model.
OURS = {
    "dec_attn.qkv_net": ["attention.W_q", "attention.W_kE", "attention.W_v"],
    "dec_attn.r_net": ["attention.W_kR"],
    "dec_attn.o_net": ["attention.W_o"],
    "pos_ff.CoreNet.0": ["feed_forward.W_1"],
    "pos_ff.CoreNet.3": ["feed_forward.W_2"],
}


def base(folder: Path, config: ModelConfig = PLAIN, dialect: Dialect | None = None) -> tuple[Path, dict]:
    weights = random_weights(config)
    return native.save(folder / "base", Checkpoint(config, dialect or Dialect(), weights)), weights


def adapted(folder: Path, tensors, config: ModelConfig = PLAIN, dialect=None, **settings) -> tuple[Checkpoint, dict]:
    """A model with an adapter merged, and its weights before."""
    path, weights = base(folder, config, dialect)
    return load_checkpoint(path, adapter=save_adapter(folder / "adapter", tensors, **settings)), weights


def refused(folder: Path, tensors, *words: str, config: ModelConfig = PLAIN, **settings) -> str:
    with pytest.raises(CheckpointError) as e:
        adapted(folder, tensors, config, **settings)
    text = one_line(e.value)
    assert str(folder / "adapter") in text
    for word in words:
        assert word in text
    return text


def changed(found: Checkpoint, before: dict) -> set[str]:
    return {n for n, w in found.weights.items() if n not in before or not np.array_equal(w, before[n])}


def rounded(exact: np.ndarray) -> np.ndarray:
    return exact.astype(np.float32)


@pytest.mark.parametrize("start", [PREFIX, PREFIX + "transformer.", "", "transformer."])
@pytest.mark.parametrize("net", NETS)
def test_every_module_finds_its_matrices(tmp_path, net, start):
    tensors = low_rank(PLAIN, [f"layers.1.{net}"])
    renamed = {n.replace(PREFIX, start): t for n, t in tensors.items()}
    found, before = adapted(tmp_path, renamed)
    names = [f"layers.1.{ours}" for ours in OURS[net]]
    assert changed(found, before) == set(names)
    exact = np.concatenate([before[n] for n in names]) + delta(tensors, f"layers.1.{net}")
    assert np.array_equal(np.concatenate([found.weights[n] for n in names]), rounded(exact))
    assert found.config == PLAIN and found.notes == ()


@pytest.mark.parametrize(
    ("settings", "rank", "scale"),
    [
        ({}, 3, 6 / 3),
        ({"use_rslora": True}, 3, 6 / math.sqrt(3)),
        ({"rank_pattern": {"qkv_net": 2}}, 2, 6 / 2),
        ({"rank_pattern": {r"layers\.[01]\.dec_attn.qkv_net": 2}, "alpha_pattern": {"other": 1}}, 2, 6 / 2),
        ({"alpha_pattern": {"^layers.1.dec_attn.qkv_net": 5}}, 3, 5 / 3),
        ({"alpha_pattern": {"layers.0.dec_attn.qkv_net": 5, "1.dec_attn.qkv_net": 4, "qkv_net": 3}}, 3, 4 / 3),
        ({"alpha_pattern": {"net": 5, "kv_net": 4}}, 3, 6 / 3),
        ({"rank_pattern": {"qkv_net": 4}, "alpha_pattern": {"qkv_net": 5.5}, "use_rslora": True}, 4, 5.5 / 2),
        ({"fan_in_fan_out": True}, 3, 6 / 3),  # of modules that are stored so; these are not, and PEFT ignores it
    ],
    ids=str,
)
def test_scales(tmp_path, settings, rank, scale):
    tensors = low_rank(PLAIN, [QKV], r=rank)
    found, before = adapted(tmp_path, tensors, **settings)
    heads = PLAIN.n_head * PLAIN.d_head
    exact = before["layers.1.attention.W_kE"] + delta(tensors, QKV, scale)[heads : 2 * heads]
    assert np.abs(found.weights["layers.1.attention.W_kE"] - exact).max() < 1e-7
    assert found.adapters[0].ranks == (rank,)


def test_sums_are_exact_and_rounded_once(tmp_path, monkeypatch):
    """A small adapter beside large weights, in blocks that a matrix does not divide into evenly."""
    monkeypatch.setattr(updates, "_BLOCK", 100)
    tensors = low_rank(PLAIN, [QKV], std=1e-4)
    found, before = adapted(tmp_path, tensors)
    exact = before["layers.1.attention.W_q"].astype(np.float64) + delta(tensors, QKV)[: PLAIN.n_head * PLAIN.d_head]
    assert np.array_equal(found.weights["layers.1.attention.W_q"], rounded(exact))


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize("module", [QKV, "layers.0.pos_ff.CoreNet.3", "word_emb.emb_layers.1"])
def test_dora_gives_rows_or_columns_their_lengths(tmp_path, monkeypatch, module, block):
    monkeypatch.setattr(updates, "_BLOCK", block)
    tensors = low_rank(DIV, [module], dora=True)
    found, before = adapted(tmp_path, tensors, DIV, use_dora=True)
    names = {QKV: [f"layers.1.{n}" for n in OURS["dec_attn.qkv_net"]], "word_emb.emb_layers.1": ["embedding.tables.1"]}
    names = names.get(module, ["layers.0.feed_forward.W_2"])
    whole = np.concatenate([before[n] for n in names]) + delta(tensors, module)
    axis = 0 if "emb" in module else 1
    magnitude = tensors[f"{PREFIX}{module}.lora_magnitude_vector"]
    exact = np.expand_dims(magnitude, axis) * whole / np.linalg.norm(whole, axis=axis, keepdims=True)
    assert np.abs(np.concatenate([found.weights[n] for n in names]) - exact).max() < 1e-6
    assert found.adapters[0].kind == "DoRA"


@pytest.mark.parametrize("config", [PLAIN, DIV, PROJ], ids=["plain", "div", "proj"])
def test_an_adapted_embedding_leaves_the_softmax_as_it_was(tmp_path, config):
    tensors = low_rank(config, ["transformer.word_emb.emb_layers.0"])
    found, before = adapted(tmp_path, tensors, config)
    exact = before["embedding.tables.0"] + delta(tensors, "transformer.word_emb.emb_layers.0")
    assert np.array_equal(found.weights["embedding.tables.0"], rounded(exact))
    assert not found.config.tie_weight and found.config.tie_projs == config.tie_projs
    tables = [n for n in before if n.startswith("embedding.tables.")]
    for name in tables:
        assert np.array_equal(found.weights[name.replace("embedding.tables", "softmax.weights")], before[name])
    assert len(found.notes) == 1 and "the tables of embedding and softmax are apart" in found.notes[0]


def test_nothing_that_is_still_equal_is_taken_apart(tmp_path):
    """Embeddings that PEFT saves along without having trained them."""
    weights = random_weights(PROJ)
    tensors = low_rank(PROJ, [QKV]) | {
        f"{PREFIX}word_emb.emb_layers.0.weight": weights["embedding.tables.0"],
        f"{PREFIX}word_emb.emb_projs.0": weights["embedding.projs.0"],
        f"{PREFIX}r_w_bias": weights["u"],
    }
    found, _ = adapted(tmp_path, tensors, PROJ)
    assert found.config == PROJ and found.notes == ()


# Tensors that an adapter holds whole, and where they go in a model whose softmax and layers share.
WHOLE = {
    "layers.0.dec_attn.layer_norm.weight": ["layers.0.attention.norm.weight"],
    "layers.1.pos_ff.layer_norm.bias": ["layers.1.feed_forward.norm.bias"],
    "layers.0.pos_ff.CoreNet.3.base_layer.bias": ["layers.0.feed_forward.b_2"],
    "layers.1.dec_attn.qkv_net.weight": ["layers.1.attention." + x for x in ("W_q", "W_kE", "W_v")],
    "r_w_bias": ["u"],
    "layers.1.dec_attn.r_r_bias": ["layers.1.attention.v"],
    "word_emb.emb_layers.0.weight": ["embedding.tables.0"],
    "word_emb.emb_projs.0": ["embedding.projs.0"],
    "crit.out_layers.0.weight": ["softmax.weights.0"],
    "crit.out_layers_weights.0": ["softmax.weights.0"],
    "crit.out_layers.0.bias": ["softmax.biases.0"],
    "crit.out_layers_biases.0": ["softmax.biases.0"],
    "crit.out_projs.2": ["softmax.projs.2"],
    "crit.shared_out_projs.0": ["softmax.projs.0", "softmax.projs.2"],
    "crit.cluster_weight": ["softmax.cluster_weight"],
}


@pytest.mark.parametrize("name", list(WHOLE))
def test_tensors_that_are_held_whole(tmp_path, name):
    before = random_weights(PROJ)
    ours = WHOLE[name]
    # What is shared in the model has its values under another name.
    alias = {"softmax.weights.0": "embedding.tables.0", "layers.1.attention.v": "v"}
    old = [before[n if n in before else alias.get(n, "embedding.projs.0")] for n in ours]
    new = [np.random.default_rng(7).standard_normal(w.shape).astype(np.float32) for w in old]
    whole = new[0] if "shared" in name else np.concatenate(new)
    found, _ = adapted(tmp_path, {PREFIX + name: whole}, PROJ, dialect=Dialect(cluster_order="reversed"))
    for n, w in zip(ours, new, strict=True):
        assert np.array_equal(found.weights[n], w)
    kept = {n: w for n, w in before.items() if n not in ours and n in found.weights}
    assert all(np.array_equal(found.weights[n], w) for n, w in kept.items())
    assert found.adapters[0].replaced == (name.replace(".base_layer", ""),)
    shares = {"crit.shared_out_projs.0", "crit.out_projs.2", "layers.1.dec_attn.r_r_bias", "word_emb.emb_projs.0"}
    apart = name in shares or "out_layers.0.weight" in name or "weights" in name or "emb_layers" in name
    assert len(found.notes) == apart


def test_biases_of_adapters(tmp_path):
    module = "layers.0.pos_ff.CoreNet.0"
    tensors = low_rank(PLAIN, [module])
    bias = np.linspace(-1, 1, PLAIN.d_inner).astype(np.float32)
    found, before = adapted(tmp_path, tensors | {f"{PREFIX}{module}.lora_B.bias": bias}, lora_bias=True)
    exact = before["layers.0.feed_forward.b_1"].astype(np.float64) + 2.0 * bias
    assert np.array_equal(found.weights["layers.0.feed_forward.b_1"], rounded(exact))
    assert changed(found, before) == {"layers.0.feed_forward.b_1", "layers.0.feed_forward.W_1"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_adapters_of_other_floats(tmp_path, dtype):
    path, before = base(tmp_path)
    tensors = {n: torch.from_numpy(t).to(dtype) for n, t in low_rank(PLAIN, [QKV]).items()}
    folder = save_adapter(tmp_path / "adapter", {})
    save_torch(tensors, folder / "adapter_model.safetensors")
    found = load_checkpoint(path, adapter=folder)
    exact = delta({n: t.float().numpy() for n, t in tensors.items()}, QKV)[: PLAIN.n_head * PLAIN.d_head]
    assert np.array_equal(found.weights["layers.1.attention.W_q"], rounded(before["layers.1.attention.W_q"] + exact))


def test_an_adapter_of_a_module_that_is_never_run(tmp_path):
    """The softmax reads `out_layers` without running it: PEFT leaves lora_B zeros there."""
    config = tiny_config(tie_weight=False)
    names = (f"{PREFIX}crit.out_layers.0.lora_{x}.weight" for x in "AB")
    tensors = dict(zip(names, (np.ones((3, 16), np.float32), np.zeros((29, 3), np.float32)), strict=True))
    found, before = adapted(tmp_path, tensors, config)
    assert not changed(found, before)
    tensors[f"{PREFIX}crit.out_layers.0.lora_B.weight"][0, 0] = 1
    refused(tmp_path, tensors, "crit.out_layers.0", "no effect", config=config)


def test_what_is_remembered(tmp_path):
    modules = module_names(PLAIN, "transformer.")
    found, _ = adapted(
        tmp_path, low_rank(PLAIN, modules) | {f"{PREFIX}transformer.r_w_bias": np.ones((2, 6), np.float32)}
    )
    (adapter,) = found.adapters
    assert (adapter.kind, adapter.ranks, adapter.alphas) == ("LoRA", (3,), (6,))
    assert adapter.modules == tuple(sorted(modules)) and adapter.path == tmp_path / "adapter"
    said = described(json.loads(json.dumps(adapter.to_dict())))
    assert said.startswith("LoRA of rank 3, alpha 6 on 10 modules: transformer.layers.0-1.dec_attn.o_net, ")
    assert said.endswith("; in place of the model's: transformer.r_w_bias")


GOOD = low_rank(PLAIN, module_names(PLAIN))
A, B = f"{PREFIX}{QKV}.lora_A.weight", f"{PREFIX}{QKV}.lora_B.weight"


WEIGHTS = "adapter_model.safetensors"


def without(*names: str) -> dict[str, np.ndarray]:
    return {n: t for n, t in GOOD.items() if n not in names}


def nan(tensor: np.ndarray) -> np.ndarray:
    return np.where(np.arange(tensor.size).reshape(tensor.shape) == 5, np.nan, tensor).astype(np.float32)


DEEPER, WIDER = tiny_config(n_layer=3), tiny_config(d_model=18)
REFUSED_TENSORS = {
    "of a deeper model": (low_rank(DEEPER, module_names(DEEPER)), {}, ["layers.2.dec_attn.o_net", "lacks"]),
    "of a wider model": (low_rank(WIDER, [QKV]), {}, [f"{QKV}.lora_A", "[3, 18]", "[3, 16]", "another model"]),
    "no such module": (low_rank(PLAIN, ["h.0.attn.qkv_net"]), {}, ["h.0.attn.qkv_net", f"{QKV.replace('1', '0')}"]),
    "no such tensor": ({PREFIX + "lm_head.weight": GOOD[A]}, {}, ["lm_head.weight", "lacks"]),
    "whole tensor of another shape": ({PREFIX + "r_w_bias": GOOD[A]}, {}, ["r_w_bias is [3, 16]", "[2, 6]"]),
    "a norm": (
        {n.replace("qkv_net", "layer_norm"): t for n, t in low_rank(PLAIN, [QKV]).items()},
        {},
        ["dec_attn.layer_norm", "linear module"],
    ),
    "half a pair": (without(B), {}, [f"lacks lora_B of {QKV}"]),
    "rank": (GOOD, {"r": 4}, ["is [3, 12]", "[4, 12] for rank 4", "adapter_config.json"]),
    "rank by pattern": (GOOD, {"rank_pattern": {"o_net": 5}}, ["o_net.lora_A is [3, 12], expected [5, 12]"]),
    "NaN": (GOOD | {A: nan(GOOD[A])}, {}, [A, "NaN"]),
    "integers": (GOOD | {A: GOOD[A].astype(np.int32)}, {}, [A, "int32"]),
    "too large to add": ({n: t * np.float32(1e25) for n, t in GOOD.items()}, {}, ["NaN or Inf"]),
    "an embedding's on a linear module": (
        {n.replace("lora_", "lora_embedding_").removesuffix(".weight"): t for n, t in GOOD.items()},
        {},
        ["lora_A", "lacks"],
    ),
    "magnitudes without DoRA": (
        low_rank(PLAIN, [QKV], dora=True),
        {},
        ["lora_magnitude_vector", "adapter_config.json"],
    ),
    "DoRA without magnitudes": (GOOD, {"use_dora": True}, ["lacks lora_magnitude_vector"]),
    "bias of a module without one": (
        low_rank(PLAIN, [QKV]) | {f"{PREFIX}{QKV}.lora_B.bias": np.ones(36, np.float32)},
        {"lora_bias": True},
        [QKV, "no bias"],
    ),
    "nothing": ({}, {}, ["no tensors"]),
    "two names": ({A: GOOD[A], B: GOOD[B], A.removeprefix(PREFIX): GOOD[A]}, {}, ["twice"]),
    "a name that writes to the terminal": ({"\x1b[2J.lora_A.weight": GOOD[A]}, {}, ["\\x1b"]),
    "an unread layer": (
        without(A, B),
        {"target_modules": ["qkv_net", "o_net"]},
        [f"nothing for {QKV}", "target_modules"],
    ),
    "an unread layer of some": (
        low_rank(PLAIN, ["layers.0.dec_attn.o_net"]),
        {"target_modules": ["o_net"], "layers_to_transform": [0, 1]},
        ["layers.1.dec_attn.o_net"],
    ),
    "lost modules": (GOOD, {"modules_to_save": ["crit"]}, ["lacks crit", "modules_to_save"]),
    "lost biases": (GOOD, {"bias": "all"}, ["lacks biases", "bias 'all'"]),
    "lost biases of modules": (GOOD, {"bias": "lora_only"}, ["lacks layers.0.pos_ff.CoreNet.0.bias", "PEFT"]),
}


@pytest.mark.parametrize("case", list(REFUSED_TENSORS))
def test_tensors_that_do_not_fit(tmp_path, case):
    tensors, settings, words = REFUSED_TENSORS[case]
    assert "\x1b" not in refused(tmp_path, tensors, *words, **settings)


def test_targets_that_are_all_there(tmp_path):
    """What `target_modules` names and the file need not hold: other layers, excluded ones, other lists of layers."""
    path, _ = base(tmp_path)
    first = low_rank(PLAIN, ["layers.0.dec_attn.o_net"])
    for settings in (
        {"target_modules": ["o_net"], "layers_to_transform": 0},
        {"target_modules": ["o_net"], "layers_to_transform": [0], "layers_pattern": "layers"},
        {"target_modules": ["o_net"], "layers_to_transform": [1], "layers_pattern": "blocks"},
        {"target_modules": ["o_net", "lm_head"], "exclude_modules": ["layers.1.dec_attn.o_net"]},
        {"target_modules": ["o_net"], "exclude_modules": "layers.1.*"},
        {"target_modules": r".*\.0\..*o_net"},
    ):
        folder = save_adapter(tmp_path / "adapter", first, **{"layers_to_transform": None, **settings})
        assert load_checkpoint(path, adapter=folder).adapters[0].modules == ("layers.0.dec_attn.o_net",)


REFUSED_SETTINGS = {
    "IA3": ({"peft_type": "IA3"}, ["peft_type IA3", "LORA"]),
    "no kind": ({"peft_type": None}, ["peft_type None"]),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, ["pissa_niter_4", "path_initial_model_for_weight_conversion"]),
    "loftq": ({"init_lora_weights": "loftq"}, ["init_lora_weights loftq"]),
    "tokens": ({"trainable_token_indices": [1, 2]}, ["trainable_token_indices", "cannot be merged"]),
    "parameters": ({"target_parameters": ["r_w_bias"]}, ["target_parameters"]),
    "activated": ({"alora_invocation_tokens": [5]}, ["alora_invocation_tokens"]),
    "of the future": ({"use_whatever": True}, ["use_whatever", "update txl-export"]),
    "rank": ({"r": 0}, ["r 0", "above 0"]),
    "rank of text": ({"r": "8"}, ["r 8", "whole number"]),
    "no rank": ({"r": None}, ["r None"]),
    "alpha": ({"lora_alpha": True}, ["lora_alpha True"]),
    "endless alpha": ({"lora_alpha": math.nan}, ["lora_alpha nan"]),
    "patterns": ({"alpha_pattern": {"qkv_net": "5"}}, ["alpha_pattern"]),
    "no expression": ({"alpha_pattern": {"qkv_net(": 5}}, ["alpha_pattern qkv_net("]),
    "an expression without end": ({"alpha_pattern": {"(.+)+x": 5}}, ["alpha_pattern", "simple"]),
    "one that counts on": ({"alpha_pattern": {".?" * 60 + "x": 5}}, ["alpha_pattern", "simple"]),
    "another": ({"rank_pattern": {"(a|a)(a|a)(a|a)": 5}}, ["rank_pattern", "simple"]),
    "many": ({"rank_pattern": {f"layers.{i}": 3 for i in range(9999)}}, ["rank_pattern", "up to"]),
    "bias": ({"bias": "some"}, ["bias some", "lora_only"]),
    "targets": ({"target_modules": [1]}, ["target_modules"]),
    "layers": ({"layers_to_transform": "all"}, ["layers_to_transform"]),
    "dora": ({"use_dora": "yes"}, ["use_dora yes"]),
}


@pytest.mark.parametrize("case", list(REFUSED_SETTINGS))
def test_settings_that_cannot_be_merged(tmp_path, case):
    settings, words = REFUSED_SETTINGS[case]
    text = refused(tmp_path, GOOD, *words, **settings)
    assert "adapter_config.json" in text and len(text) < 500


def test_dora_with_biases_of_its_own(tmp_path):
    module = "layers.0.pos_ff.CoreNet.0"
    tensors = low_rank(PLAIN, [module], dora=True) | {f"{PREFIX}{module}.lora_B.bias": np.ones(24, np.float32)}
    refused(tmp_path, tensors, "lora_bias", "use_dora", use_dora=True, lora_bias=True)


def test_rows_of_clusters_are_of_the_model_that_was_trained(tmp_path):
    """Hugging Face's rows are in the other order than kimiyoung's; names of the body tell whose they are."""
    rows = {PREFIX + "crit.cluster_weight": np.ones((2, 16), np.float32)}
    theirs, authors = (low_rank(DIV, [f"{start}{QKV}"]) | rows for start in ("transformer.", ""))
    adapted(tmp_path, theirs, DIV, Dialect(cluster_order="forward"))
    adapted(tmp_path, authors, DIV, Dialect(cluster_order="reversed"))
    adapted(tmp_path, rows, DIV, Dialect(cluster_order="forward"))
    refused(tmp_path, authors, "crit.cluster_weight", "reversed", "forward", config=DIV)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda f: (f / WEIGHTS).rename(f / "adapter_model.bin"), ["adapter_model.bin", "save_pretrained"]),
        (lambda f: (f / WEIGHTS).unlink(), ["no adapter_model.safetensors"]),
        (lambda f: (f / "adapter_config.json").unlink(), ["no adapter_config.json", "PEFT"]),
        (lambda f: (f / "adapter_config.json").write_text("[]"), ["adapter_config.json holds list"]),
        (lambda f: (f / "adapter_config.json").write_text("{"), ["adapter_config.json", "JSON"]),
        (lambda f: (f / "adapter_config.json").write_text(" " * 5_000_000), ["5000000 bytes"]),
        (lambda f: (f / WEIGHTS).write_bytes(b"junk"), ["adapter_model.safetensors", "readable"]),
    ],
    ids=["bin", "no weights", "no config", "list", "cut", "huge config", "junk"],
)  # fmt: skip
def test_folders_that_are_no_adapter(tmp_path, write, words):
    path, _ = base(tmp_path)
    folder = save_adapter(tmp_path / "adapter", GOOD)
    write(folder)
    with pytest.raises(CheckpointError) as e:
        load_checkpoint(path, adapter=folder)
    for word in words:
        assert word in one_line(e.value)


def test_places_that_are_no_folder(tmp_path):
    path, _ = base(tmp_path)
    (tmp_path / "file").touch()
    for place, word in (("gone", "does not exist"), ("file", "is a file")):
        with pytest.raises(CheckpointError, match=word):
            load_checkpoint(path, adapter=tmp_path / place)


def test_a_file_far_larger_than_the_model_is_not_read(tmp_path):
    path, _ = base(tmp_path)
    folder = save_adapter(tmp_path / "adapter", GOOD)
    with (folder / "adapter_model.safetensors").open("r+b") as f:
        f.truncate(1 << 30)  # a hole: nothing is stored
    with pytest.raises(CheckpointError, match="1073741824 bytes"):
        load_checkpoint(path, adapter=folder)


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path):
    path, _ = base(tmp_path)
    folder = save_adapter(tmp_path / "adapter", GOOD, alpha_pattern={"qkv_net": 4}, target_modules=["o_net", "qkv_net"])
    rng, refusals = np.random.default_rng(0), 0
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        data = (folder / name).read_bytes()
        for _ in range(150):
            mutated = bytearray(data)
            for at in rng.integers(0, min(len(data), 2000), rng.integers(1, 4)):
                mutated[at] = rng.choice([*b'{}[]",:0a9e', rng.integers(256)])
            (folder / name).write_bytes(mutated if rng.random() < 0.8 else mutated[: rng.integers(len(data))])
            try:
                load_checkpoint(path, adapter=folder)
            except CheckpointError as e:
                refusals += bool(one_line(e))
        (folder / name).write_bytes(data)
    assert refusals > 100
    assert load_file(folder / "adapter_model.safetensors").keys() == GOOD.keys()


def test_nothing_is_written_into_the_base(tmp_path):
    path, before = base(tmp_path)
    save_file(GOOD, save_adapter(tmp_path / "adapter", GOOD) / "adapter_model.safetensors")
    load_checkpoint(path, adapter=[tmp_path / "adapter", save_adapter(tmp_path / "second", GOOD)])
    again = load_checkpoint(path)
    assert not changed(again, before) and again.adapters == ()


def test_nothing_is_added_twice_by_mistake(tmp_path):
    tensors = low_rank(PLAIN, module_names(PLAIN))
    twice = {n.replace(PREFIX, PREFIX + "transformer."): t for n, t in tensors.items()}
    refused(tmp_path, tensors | twice, "twice, under two names: give one")
    path, folder = tmp_path / "base", save_adapter(tmp_path / "adapter", tensors)
    with pytest.raises(CheckpointError, match=r"adapter is given twice.*give it once"):
        load_checkpoint(path, adapter=[folder, tmp_path / "x" / ".." / "adapter"])
