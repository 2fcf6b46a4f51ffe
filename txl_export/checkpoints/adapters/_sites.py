"""Tensors that a model shares, taken apart for an adapter and shared again where it left them equal.

An adapter is trained on modules. One on the embedding leaves the softmax as it was, although both read one table;
a module that was trained whole (`modules_to_save`) is a copy, which shares nothing. So every use of a shared tensor
is a place of its own while the adapter is merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from txl_export.checkpoints import huggingface, kimiyoung, nvidia
from txl_export.checkpoints.upstream import Place, projection_owner, tensor_places
from txl_export.config import ModelConfig
from txl_export.weights import table_sizes, weight_shapes

Weights = Mapping[str, np.ndarray]

# An adapter is trained on any of these, whatever the checkpoint was converted to since.
_NAMINGS = (kimiyoung.NAMING, nvidia.NAMING, huggingface.NAMING)


def untied_config(config: ModelConfig) -> ModelConfig:
    """The same model with nothing shared."""
    return dataclasses.replace(config, tie_weight=False, untie_r=True, tie_projs=(False,) * len(config.tie_projs))


def untied(config: ModelConfig, weights: Weights) -> dict[str, np.ndarray]:
    """The tensors of `untied_config`: shared ones once for each use, not copied."""
    owners = {f"softmax.weights.{i}": f"embedding.tables.{i}" for i in range(len(table_sizes(config)))}
    for c in range(len(config.tie_projs)):
        owners[f"softmax.projs.{c}"] = f"embedding.projs.{projection_owner(config.div_val, c)}"
    owners |= {f"layers.{n}.attention.{bias}": bias for n in range(config.n_layer) for bias in "uv"}
    return {name: weights[name if name in weights else owners[name]] for name in weight_shapes(untied_config(config))}


def tied_as(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Share again what `config` shares, as far as it is still equal.

    Args:
        config: of the model before.
        weights: of `untied_config`.

    Returns:
        the configuration that says what is still shared, and its tensors.
    """
    tables, first = range(len(table_sizes(config))), "layers.0.attention."
    pairs = [(f"softmax.weights.{i}", f"embedding.tables.{i}") for i in tables]
    biases = [(f"layers.{n}.attention.{b}", first + b) for n in range(config.n_layer) for b in "uv"]
    found = dataclasses.replace(
        config,
        tie_weight=config.tie_weight and all(_same(weights, *pair) for pair in pairs),
        tie_projs=tuple(tied and _shares_projection(config, weights, c) for c, tied in enumerate(config.tie_projs)),
        untie_r=config.untie_r or not all(_same(weights, *pair) for pair in biases),
    )
    both = {"u": weights[first + "u"], "v": weights[first + "v"], **weights}
    return found, {name: both[name] for name in weight_shapes(found)}


def _shares_projection(config: ModelConfig, weights: Weights, cluster: int) -> bool:
    owner = f"embedding.projs.{projection_owner(config.div_val, cluster)}"
    return not config.has_projs or _same(weights, f"softmax.projs.{cluster}", owner)


def _same(weights: Weights, a: str, b: str) -> bool:
    return weights[a] is weights[b] or np.array_equal(weights[a], weights[b])


def no_longer_shared(before: ModelConfig, after: ModelConfig) -> list[str]:
    """What `tied_as` left apart, in words."""
    parts = {
        "the tables of embedding and softmax": before.tie_weight != after.tie_weight,
        "their projections": before.tie_projs != after.tie_projs,
        "u and v of the layers": before.untie_r != after.untie_r,
    }
    return [what for what, is_apart in parts.items() if is_apart]


def places(config: ModelConfig) -> dict[str, Place]:
    """Every name that an adapter may use for a tensor of this model, with where it goes in `untied_config`.

    What all layers share goes before what is one layer's own, so that the latter has the last word.
    """
    apart, layers = untied_config(config), range(config.n_layer)
    found: dict[str, Place] = {}
    for naming in _NAMINGS:
        if not config.untie_r:
            for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
                parts = tuple((f"layers.{n}.attention.{ours}", slice(None)) for n in layers)
                found[naming.base + theirs] = Place((config.n_head, config.d_head), parts)
        if naming.shared_proj and config.has_projs:
            found |= _shared_projections(config, naming.shared_proj)
        found |= tensor_places(apart, dataclasses.replace(naming, shared_proj=None))
    return found


def _shared_projections(config: ModelConfig, name: str) -> dict[str, Place]:
    """The softmax's own list of those projections of the embedding that it uses."""
    shapes, found = weight_shapes(untied_config(config)), {}
    for i in range(len(table_sizes(config))):
        tied = [c for c, t in enumerate(config.tie_projs) if t and projection_owner(config.div_val, c) == i]
        parts = tuple((f"softmax.projs.{c}", slice(None)) for c in tied)
        found[name.format(i)] = Place(shapes[f"embedding.projs.{i}"], parts)
    return found
