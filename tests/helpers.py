"""Small things that many tests use; import them from `tests.helpers`."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from txl_export.checkpoints import Checkpoint
from txl_export.config import Dialect, ModelConfig
from txl_export.weights import weight_shapes


def tiny_config(**changes: Any) -> ModelConfig:
    """Two layers, d_model 16, 29 tokens, M = 6; anything can be changed."""
    usual = {
        "vocab_size": 29, "n_layer": 2, "n_head": 2, "d_model": 16, "d_head": 6, "d_inner": 24, "mem_len": 6,
    }  # fmt: skip
    return ModelConfig(**usual | changes)


def random_weights(config: ModelConfig, seed: int = 0, std: float = 0.1) -> dict[str, np.ndarray]:
    """Normal weights, biases and LayerNorm biases; LayerNorm weights around one. Float32."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) * std + name.endswith("norm.weight")).astype(np.float32)
        for name, shape in weight_shapes(config).items()
    }


def random_checkpoint(
    config: ModelConfig, dialect: Dialect | None = None, seed: int = 0, std: float = 0.1
) -> Checkpoint:
    """A checkpoint in memory whose tensors are all random, biases included."""
    return Checkpoint(config=config, dialect=dialect or Dialect(), weights=random_weights(config, seed, std))


def random_ids(config: ModelConfig, batch_size: int, length: int, seed: int = 0) -> np.ndarray:
    """Tokens [B, L] int64, from every cluster."""
    rng = np.random.default_rng(seed)
    ends = config.cluster_ends
    cluster = rng.integers(0, len(ends) - 1, (batch_size, length))
    low, high = np.array(ends[:-1])[cluster], np.array(ends[1:])[cluster]
    return rng.integers(low, high).astype(np.int64)


def import_or_skip(name: str, why: str) -> ModuleType:
    """The module; where it is missing skip with the reason, but fail in CI, where nothing may be missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} is not installed: {why}", allow_module_level=True)
