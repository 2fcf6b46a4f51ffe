"""Configurations of files that hold none: seen in the weights, given by the caller, or a default that is said."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from txl_export.checkpoints.base import values_of
from txl_export.checkpoints.upstream import Naming
from txl_export.config import ARCHITECTURE, OVERRIDABLE_CONFIG, ModelConfig
from txl_export.errors import CheckpointError, ConfigError

Shapes = Mapping[str, tuple[int, ...]]

# What weights cannot show, and what is taken for it.
DEFAULTS: dict[str, Any] = {"pre_lnorm": False, "mem_len": 512, "clamp_len": -1, "same_length": False}

# Tensors that only the other types of attention have, learned per distance (1, 3) or with absolute positions (2, 3).
_OTHER_ATTENTION = {"r_bias": "1", "r_emb": "1 or 3", "layers.0.dec_attn.kv_net.weight": "2 or 3"}


def completed(found: Mapping[str, Any], given: Mapping[str, Any], source: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """A configuration of what a file shows, then of what the caller says, then of `DEFAULTS`.

    Args:
        found: fields of `ModelConfig` that the weights show; None for one that they leave open and that has no
            default.
        given: the caller's overrides.
        source: what to call the file in messages.

    Returns:
        the configuration, and the defaults that were taken.

    Raises:
        ConfigError: for a field that is open and was not given, or a value that does not fit.
    """
    values = {k: v for k, v in found.items() if v is not None}
    says = {k: v for k, v in given.items() if k in ARCHITECTURE + OVERRIDABLE_CONFIG and k not in values}
    missing = [k for k, v in found.items() if v is None and k not in says]
    if missing:
        flags = " ".join(f"--set {k}=..." for k in missing)
        raise ConfigError(f"{source} does not say {', '.join(missing)}: give it as an override ({flags})")
    assumed = {k: v for k, v in DEFAULTS.items() if k not in values and k not in says}
    with values_of(source, says):
        return ModelConfig(**{**values, **says, **assumed}), assumed


def fields_in(shapes: Shapes, naming: Naming, source: Path) -> dict[str, Any]:
    """Fields of `ModelConfig` that the shapes of a model's tensors show; None for cutoffs that they leave open.

    Raises:
        CheckpointError: tensors that every model has are missing or misshaped.
    """
    _refuse_other_attention(shapes, naming, source)
    heads = _shape(shapes, (naming.base + "r_w_bias", f"{naming.base}layers.0.dec_attn.r_w_bias"), 2, source)
    inner = _shape(shapes, (f"{naming.base}layers.0.pos_ff.CoreNet.0.weight",), 2, source)
    first = _shape(shapes, (f"{naming.base}word_emb.emb_layers.0.weight",), 2, source)
    d_model, d_embed = inner[1], first[1]
    return {
        "n_layer": sum(name.endswith(".dec_attn.qkv_net.weight") for name in shapes),
        "n_head": heads[0],
        "d_head": heads[1],
        "d_model": d_model,
        "d_inner": inner[0],
        "d_embed": d_embed,
        "untie_r": naming.base + "r_w_bias" not in shapes,
        **_clusters(shapes, naming, d_embed, d_model, source),
    }


def _refuse_other_attention(shapes: Shapes, naming: Naming, source: Path) -> None:
    """Raise CheckpointError for tensors that only upstream's other kinds of attention have."""
    for name, types in _OTHER_ATTENTION.items():
        if naming.base + name in shapes:
            raise CheckpointError(
                f"{source} holds {name}: it was trained with attn_type {types}, expected 0, the paper's attention: "
                "the others are not supported"
            )


def _clusters(shapes: Shapes, naming: Naming, d_embed: int, d_model: int, source: Path) -> dict[str, Any]:
    """Vocabulary, cutoffs and div_val: of several tables the sizes tell, of one table only the number of clusters."""
    names = [f"{naming.base}word_emb.emb_layers.{i}.weight" for i in range(len(shapes))]
    tables = [_shape(shapes, (name,), 2, source) for name in names if name in shapes]
    ends = list(accumulate(rows for rows, _ in tables))
    fields = {"vocab_size": ends[-1], "cutoffs": tuple(ends[:-1])}
    if len(tables) > 1:
        return fields | {"div_val": _div_val([width for _, width in tables], source)}
    has_projs = any(name in shapes for name in naming.proj_names(0))
    tails = "crit.cluster_weight" in shapes
    return fields | {
        "cutoffs": None if tails else (),
        # Projections between equal widths are there only with a div_val above 1, which one table never uses.
        "div_val": 2 if has_projs and d_embed == d_model and not tails else 1,
    }


def _div_val(widths: list[int], source: Path) -> int:
    """The ratio of the first two; of two tables alone others may round to the same widths, which is the same model."""
    div_val = widths[0] // max(1, widths[1])
    if div_val < 2 or widths != [widths[0] // div_val**i for i in range(len(widths))]:
        raise CheckpointError(
            f"{source}: embedding tables are {widths[:8]} wide, expected each a div_val-th of the one before"
        )
    return div_val


def _shape(shapes: Shapes, names: tuple[str, ...], dims: int, source: Path) -> tuple[int, ...]:
    for name in names:
        if name in shapes:
            if len(shapes[name]) != dims:
                raise CheckpointError(f"{source}: {name} is {list(shapes[name])}, expected {dims} dimensions")
            return shapes[name]
    raise CheckpointError(f"{source} lacks {names[0]}: the file is incomplete or is no Transformer-XL")
