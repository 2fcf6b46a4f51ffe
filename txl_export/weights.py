"""The canonical tensors of a Transformer-XL: their names, shapes and checks, shared by all origins.

The names are the parameter names of `txl_export.reference.TransformerXL` (a test compares the two). Tied
tensors appear once, under the embedding's name. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from txl_export.config import ModelConfig
from txl_export.errors import CheckpointError

Weights = Mapping[str, np.ndarray]


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model, in the order of the reference's state dict."""
    c = config
    heads = c.n_head * c.d_head
    shapes: dict[str, tuple[int, ...]] = {}
    if not c.untie_r:
        shapes |= {"u": (c.n_head, c.d_head), "v": (c.n_head, c.d_head)}
    sizes = table_sizes(c)
    shapes |= {f"embedding.tables.{i}": size for i, size in enumerate(sizes)}
    if c.has_projs:
        shapes |= {f"embedding.projs.{i}": (c.d_model, width) for i, (_, width) in enumerate(sizes)}
    for n in range(c.n_layer):
        attention = f"layers.{n}.attention."
        if c.untie_r:
            shapes |= {attention + "u": (c.n_head, c.d_head), attention + "v": (c.n_head, c.d_head)}
        shapes |= {attention + name: (heads, c.d_model) for name in ("W_q", "W_kE", "W_v", "W_kR")}
        shapes[attention + "W_o"] = (c.d_model, heads)
        shapes |= _norm_shapes(attention, c.d_model)
        ff = f"layers.{n}.feed_forward."
        shapes |= {ff + "W_1": (c.d_inner, c.d_model), ff + "b_1": (c.d_inner,)}
        shapes |= {ff + "W_2": (c.d_model, c.d_inner), ff + "b_2": (c.d_model,)}
        shapes |= _norm_shapes(ff, c.d_model)
    return shapes | _softmax_shapes(c)


def table_sizes(config: ModelConfig) -> list[tuple[int, int]]:
    """(rows, width) of each embedding table: one for all tokens with div_val 1, else one per cluster."""
    if config.div_val == 1:
        return [(config.vocab_size, config.d_embed)]
    ends = config.cluster_ends
    return [(ends[i + 1] - ends[i], config.cluster_width(i)) for i in range(len(ends) - 1)]


def _norm_shapes(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {prefix + "norm.weight": (width,), prefix + "norm.bias": (width,)}


def _softmax_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if config.n_tails:
        shapes["softmax.cluster_weight"] = (config.n_tails, config.d_embed)
        shapes["softmax.cluster_bias"] = (config.n_tails,)
    sizes = table_sizes(config)
    if not config.tie_weight:
        shapes |= {f"softmax.weights.{i}": size for i, size in enumerate(sizes)}
    shapes |= {f"softmax.biases.{i}": (rows,) for i, (rows, _) in enumerate(sizes)}
    for i, tied in enumerate(config.tie_projs):
        if config.has_projs and not tied:
            shapes[f"softmax.projs.{i}"] = (config.d_model, config.cluster_width(i))
    return shapes


def check_weights(config: ModelConfig, weights: Weights, source: str) -> None:
    """Compare tensors with what the configuration calls for.

    Args:
        config: the architecture.
        weights: canonical names to arrays.
        source: what to call the file in messages.

    Raises:
        CheckpointError: naming the first missing, extra or misshaped tensors, or one that holds NaN or Inf.
    """
    expected = weight_shapes(config)
    missing = [n for n in expected if n not in weights]
    extra = [n for n in weights if n not in expected]
    if missing:
        raise CheckpointError(
            f"{source} lacks {_listed(missing)}: the file is incomplete or its config names another model"
        )
    if extra:
        raise CheckpointError(f"{source} has unexpected {_listed(extra)}: its config names another model")
    for name, shape in expected.items():
        found = weights[name]
        if tuple(found.shape) != shape:
            raise CheckpointError(f"{source}: {name} is {list(found.shape)}, expected {list(shape)} from the config")
        if found.dtype.kind != "f":
            raise CheckpointError(f"{source}: {name} has dtype {found.dtype}, expected floating point")
        if not np.isfinite(found).all():
            raise CheckpointError(
                f"{source}: {name} holds NaN or Inf: the training run diverged or the file is damaged"
            )


def _listed(names: list[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def count_parameters(config: ModelConfig) -> int:
    """Number of trained numbers of a model."""
    return sum(int(np.prod(s)) for s in weight_shapes(config).values())
