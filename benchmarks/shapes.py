"""The models that are timed: two published shapes with random weights, and the shipped model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl_export.checkpoints import Checkpoint, native
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import InputError
from txl_export.files import sha256
from txl_export.named_configs import named_config
from txl_export.weights import weight_shapes

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "benchmarks" / ".cache"
SHIPPED = {"stdlib-bytes": ROOT / "models" / "stdlib-bytes"}
NAMED = ("enwik8-base", "wt103-base")
SHAPES = (*NAMED, *SHIPPED)

_SEED, _STD = 0, 0.05  # attention far from uniform, so that a wrong memory shows in the check


@dataclass(frozen=True)
class Shape:
    """A model to time.

    Attributes:
        name: how it is called in the results.
        config: the architecture and its evaluation values; M is the cell's.
        dialect: its origin's behaviours.
        checkpoint: folder of the native checkpoint; `make_checkpoint` makes it where it is missing.
        digest: tells the weights from others.
    """

    name: str
    config: ModelConfig
    dialect: Dialect
    checkpoint: Path
    digest: str


def open_shape(name: str) -> Shape:
    """A shape of `SHAPES`.

    Raises:
        InputError: another name.
        CheckpointError: the shipped model cannot be read.
    """
    if name in SHIPPED:
        path = SHIPPED[name]
        found = native.load(path)
        return Shape(name, found.config, found.dialect, path, sha256(path / native.WEIGHTS_FILE))
    if name not in NAMED:
        raise InputError(f"no shape is named {name!r}: use {', '.join(SHAPES)}")
    config, dialect = named_config(name)
    recipe = json.dumps([config.to_dict(), dialect.to_dict(), _SEED, _STD], sort_keys=True)
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    return Shape(name, config, dialect, CACHE / name / f"checkpoint-{digest[:12]}", digest)


def make_checkpoint(shape: Shape) -> bool:
    """Write the random weights of a named shape unless they are there; returns whether that was needed."""
    if shape.checkpoint.is_dir():
        return False
    rng = np.random.default_rng(_SEED)
    weights = {
        name: rng.standard_normal(size, dtype=np.float32) * np.float32(_STD) + np.float32(name.endswith("norm.weight"))
        for name, size in weight_shapes(shape.config).items()
    }
    native.save(shape.checkpoint, Checkpoint(shape.config, shape.dialect, weights))
    return True
