"""Origin `huggingface`: a `transfo-xl` folder with a config.json, weights whole or in shards, maybe a vocabulary.

Source of names and rules: transformers 4.35.2, `models/transfo_xl/modeling_transfo_xl.py` and
`configuration_transfo_xl.py`.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_export.checkpoints.base import Checkpoint, values_of
from txl_export.checkpoints.shards import Reader, read_shards
from txl_export.checkpoints.tensors import read_safetensors
from txl_export.checkpoints.torch_files import read_torch, refuse_extras
from txl_export.checkpoints.upstream import Naming, canonical_weights
from txl_export.checkpoints.vocabularies import find_huggingface
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError, ConfigError
from txl_export.files import read_json

CONFIG_FILE = "config.json"
# First found wins, as in `from_pretrained`.
WEIGHT_FILES: dict[str, Reader] = {
    "model.safetensors": read_safetensors,
    "model.safetensors.index.json": functools.partial(read_shards, read=read_safetensors),
    "pytorch_model.bin": read_torch,
    "pytorch_model.bin.index.json": functools.partial(read_shards, read=read_torch),
}
NAMING = Naming(base="transformer.")

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


def load(path: Path, _given: Mapping[str, Any] | None = None, with_vocab: bool = True) -> Checkpoint:
    """Read a Hugging Face folder; raises CheckpointError or ConfigError."""
    value = read_json(path / CONFIG_FILE, CheckpointError)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path / CONFIG_FILE} holds {type(value).__name__}, expected an object")
    with values_of(path / CONFIG_FILE):
        config, dialect = parse_config(value)
    name = next((n for n in WEIGHT_FILES if (path / n).is_file()), None)
    if name is None:
        raise CheckpointError(f"{path} has no {' or '.join(WEIGHT_FILES)}: the folder is incomplete")
    weights = canonical_weights(config, WEIGHT_FILES[name](path / name), path / name, NAMING)
    vocab, notes = find_huggingface(path, config) if with_vocab else (None, ())
    return Checkpoint(config, dialect, weights, origin="huggingface", path=path, vocab=vocab, notes=notes)


def parse_config(value: dict[str, Any]) -> tuple[ModelConfig, Dialect]:
    """The architecture and dialect that a config.json describes; raises ConfigError."""
    v = _DEFAULTS | {_ALIASES.get(key, key): found for key, found in value.items()}
    refuse_extras(v)
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


def config_dict(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    """The config.json of a model that this origin's code can run; `parse_config` takes it back."""
    same = {k: v for k, v in config.to_dict().items() if k in _DEFAULTS}
    return {
        "model_type": "transfo-xl",
        "architectures": ["TransfoXLLMHeadModel"],
        **same,
        "tie_projs": list(config.tie_projs),
        "tie_word_embeddings": config.tie_weight,
        "layer_norm_epsilon": dialect.layer_norm_eps,
    }


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(value[key], list):
        raise ConfigError(f"{key} is {reprlib.repr(value[key])}, expected a list")
    return list(value[key])
