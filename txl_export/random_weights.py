"""Random weights for published configurations: to try sizes, memory and speed before there is a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_export.checkpoints.base import Checkpoint, RandomWeights
from txl_export.config import ModelConfig, apply_overrides
from txl_export.named_configs import published
from txl_export.weights import weight_shapes

# Attention is far from uniform with it, so that a wrong memory shows in a comparison.
STD = 0.05


def random_checkpoint(name: str, seed: int = 0, overrides: Mapping[str, Any] | None = None) -> Checkpoint:
    """A published model with random weights in place of the trained ones, and without a vocabulary.

    Args:
        name: of a configuration, such as "kimiyoung/wt103-base" (`config_names`).
        seed: of the weights; equal seeds give equal weights.
        overrides: evaluation values, as `load_checkpoint` takes them.

    Raises:
        ConfigError: an unknown name, or values that do not fit.
        InputError: a seed below 0.
    """
    found, drawn = published(name), RandomWeights(name, seed)
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    config, dialect = apply_overrides(found.config, found.dialect, given)
    return Checkpoint(
        config,
        dialect,
        random_weights(config, seed),
        origin=found.origin,
        overrides=given,
        notes=(drawn.note,),
        random=drawn,
    )


def random_weights(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Normal numbers of standard deviation `STD` for every tensor, those of LayerNorm weights around one; float32."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        weights[name] = w = rng.standard_normal(shape, dtype=np.float32)
        w *= np.float32(STD)  # in place: the largest tensor may be most of the model
        w += np.float32(name.endswith("norm.weight"))
    return weights
