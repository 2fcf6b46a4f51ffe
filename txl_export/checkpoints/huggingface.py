"""Origin `huggingface`: a `transfo-xl` folder with config.json and safetensors or pytorch_model.bin.

Source of names and rules: transformers 4.35.2, `models/transfo_xl/modeling_transfo_xl.py` and
`configuration_transfo_xl.py`. Tensors that the model shares (tied weights and projections, u and v of all
layers) may stand in the file under any of their names, or under several.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.tensors import read_safetensors, read_torch
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError
from txl_export.files import read_json
from txl_export.weights import table_sizes

CONFIG_FILE = "config.json"
# First found wins, as in `from_pretrained`.
WEIGHT_FILES = {"model.safetensors": read_safetensors, "pytorch_model.bin": read_torch}
BASE = "transformer."

# `TransfoXLConfig`'s defaults for what a config.json may leave out.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "d_model": 1024, "d_embed": 1024, "n_head": 16,
    "d_head": 64, "d_inner": 4096, "div_val": 4, "pre_lnorm": False, "n_layer": 18, "mem_len": 1600,
    "clamp_len": 1000, "same_length": True, "attn_type": 0, "dropout": 0.1, "dropatt": 0.0, "untie_r": True,
    "tie_word_embeddings": True, "proj_share_all_but_first": True, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
# `TransfoXLConfig.attribute_map`: other names that a config.json may use.
_ALIASES = {
    "n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
}  # fmt: skip


def detect(path: Path) -> str | None:
    """Why `path` is of this origin, or None when it is not."""
    config = path / CONFIG_FILE
    if not config.is_file():
        return None
    value = read_json(config, CheckpointError)
    is_ours = isinstance(value, dict) and value.get("model_type") == "transfo-xl"
    return f'{CONFIG_FILE} says model_type "transfo-xl"' if is_ours else None


def load(path: Path) -> Checkpoint:
    """Read a Hugging Face folder; raises CheckpointError or ConfigError."""
    value = read_json(path / CONFIG_FILE, CheckpointError)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path / CONFIG_FILE} holds {type(value).__name__}, expected an object")
    config, dialect = parse_config(value)
    name = next((n for n in WEIGHT_FILES if (path / n).is_file()), None)
    if name is None:
        raise CheckpointError(f"{path} has no {' or '.join(WEIGHT_FILES)}: the folder is incomplete")
    weights = canonical_weights(config, WEIGHT_FILES[name](path / name), path / name)
    return Checkpoint(config=config, dialect=dialect, weights=weights, origin="huggingface", path=path)


def parse_config(value: dict[str, Any]) -> tuple[ModelConfig, Dialect]:
    """The architecture and dialect that a config.json describes; raises ConfigError."""
    v = _DEFAULTS | {_ALIASES.get(key, key): found for key, found in value.items()}
    cutoffs = _list(v, "cutoffs")
    shared = bool(v["proj_share_all_but_first"])
    tie_projs = _list(v, "tie_projs") if "tie_projs" in v else [False] + [shared] * len(cutoffs)
    config = ModelConfig(
        cutoffs=tuple(cutoffs),
        tie_projs=tuple(tie_projs),
        tie_weight=v["tie_word_embeddings"],
        vocab_size=v["vocab_size"],
        **{k: v[k] for k in ("n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val")},
        **{k: v[k] for k in ("pre_lnorm", "untie_r", "mem_len", "clamp_len", "same_length")},
        **{k: v[k] for k in ("dropout", "dropatt", "attn_type")},
    )
    dialect = Dialect(
        initial_memory="zeros",
        window_extra=0,
        cluster_order="forward",
        layer_norm_eps=v["layer_norm_epsilon"],
    )
    return config, dialect


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(value[key], list):
        raise CheckpointError(f"config.json: {key} is {value[key]!r}, expected a list")
    return list(value[key])


def canonical_weights(config: ModelConfig, tensors: dict[str, np.ndarray], source: Path) -> dict[str, np.ndarray]:
    """Rename a file's tensors to the canonical names; every tensor of the file must be accounted for.

    Raises:
        CheckpointError: for missing or unknown tensors, or shared ones whose copies differ.
    """
    rest = dict(tensors)
    weights: dict[str, np.ndarray] = {}
    for name, aliases in _tensor_names(config):
        found = [(a, rest.pop(a)) for a in aliases if a in rest]
        if not found:
            raise CheckpointError(
                f"{source} lacks {aliases[0]}: the file is incomplete or its config names another model"
            )
        first, weights[name] = found[0]
        for alias, copy in found[1:]:
            if not np.array_equal(copy, weights[name]):
                raise CheckpointError(f"{source}: {first} and {alias} differ, but the config shares them")
    for n, qkv in _fused_names(config):
        fused = rest.pop(qkv, None)
        if fused is None:
            raise CheckpointError(f"{source} lacks {qkv}: the file is incomplete or its config names another model")
        heads = config.n_head * config.d_head
        if fused.shape != (3 * heads, config.d_model):
            raise CheckpointError(
                f"{source}: {qkv} is {list(fused.shape)}, expected {[3 * heads, config.d_model]} from the config"
            )
        for part, letter in enumerate(("W_q", "W_kE", "W_v")):
            weights[f"layers.{n}.attention.{letter}"] = fused[part * heads : (part + 1) * heads]
    _check_frequencies(config, rest.pop(BASE + "pos_emb.inv_freq", None), source)
    if rest:
        raise CheckpointError(f"{source} has unexpected {', '.join(sorted(rest)[:4])}: its config names another model")
    return weights


def _fused_names(config: ModelConfig) -> Iterator[tuple[int, str]]:
    for n in range(config.n_layer):
        yield n, f"{BASE}layers.{n}.dec_attn.qkv_net.weight"


def _tensor_names(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Canonical name of each tensor but the fused ones, with every name it may have in the file."""
    for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
        per_layer = [f"{BASE}layers.{n}.dec_attn.{theirs}" for n in range(config.n_layer)]
        if config.untie_r:
            yield from ((f"layers.{n}.attention.{ours}", [name]) for n, name in enumerate(per_layer))
        else:
            yield ours, [BASE + theirs, *per_layer]
    for n in range(config.n_layer):
        attention, ff = f"{BASE}layers.{n}.dec_attn.", f"{BASE}layers.{n}.pos_ff."
        yield f"layers.{n}.attention.W_kR", [attention + "r_net.weight"]
        yield f"layers.{n}.attention.W_o", [attention + "o_net.weight"]
        for ours, theirs in (("W_1", "0.weight"), ("b_1", "0.bias"), ("W_2", "3.weight"), ("b_2", "3.bias")):
            yield f"layers.{n}.feed_forward.{ours}", [f"{ff}CoreNet.{theirs}"]
        for part in ("weight", "bias"):
            yield f"layers.{n}.attention.norm.{part}", [f"{attention}layer_norm.{part}"]
            yield f"layers.{n}.feed_forward.norm.{part}", [f"{ff}layer_norm.{part}"]
    yield from _embedding_names(config)


def _embedding_names(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    tables = range(len(table_sizes(config)))
    for i in tables:
        names, out = [f"{BASE}word_emb.emb_layers.{i}.weight"], f"crit.out_layers.{i}.weight"
        yield f"embedding.tables.{i}", names + [out] * config.tie_weight
        if not config.tie_weight:
            yield f"softmax.weights.{i}", [out]
        yield f"softmax.biases.{i}", [f"crit.out_layers.{i}.bias"]
    if config.n_tails:
        yield "softmax.cluster_weight", ["crit.cluster_weight"]
        yield "softmax.cluster_bias", ["crit.cluster_bias"]
    if not config.has_projs:
        return
    # With one table for all tokens every tied projection is the table's.
    owner = {i: i if config.div_val > 1 else 0 for i, tied in enumerate(config.tie_projs) if tied}
    for i in tables:
        shared = [f"crit.out_projs.{c}" for c, table in owner.items() if table == i]
        yield f"embedding.projs.{i}", [f"{BASE}word_emb.emb_projs.{i}", *shared]
    for i, tied in enumerate(config.tie_projs):
        if not tied:
            yield f"softmax.projs.{i}", [f"crit.out_projs.{i}"]


def _check_frequencies(config: ModelConfig, found: np.ndarray | None, source: Path) -> None:
    """The sinusoid's frequencies are derived, not trained: a file may hold them, but only the usual ones."""
    if found is None:
        return
    usual = 1 / 10000 ** (np.arange(0, config.d_model, 2) / config.d_model)
    # A model stored in half precision has them rounded too; the exact ones are used all the same.
    halved = np.array_equal(found, found.astype(np.float16))
    bfloat16 = not (found.astype(np.float32).view(np.uint32) & 0xFFFF).any()
    tolerance = 8e-3 if bfloat16 else 1e-3 if halved else 1e-4
    if found.shape != usual.shape or not np.allclose(found, usual, rtol=tolerance, atol=0):
        raise CheckpointError(
            f"{source}: pos_emb.inv_freq is not the paper's: this positional encoding is not supported"
        )
