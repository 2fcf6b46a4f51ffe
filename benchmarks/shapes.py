"""The models that are timed: two published shapes with random weights, and the shipped model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from txl_export.checkpoints import Checkpoint, native
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import InputError
from txl_export.files import sha256
from txl_export.named_configs import named_config
from txl_export.random_weights import STD, random_weights

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "benchmarks" / ".cache"
SHIPPED = {"stdlib-bytes": ROOT / "models" / "stdlib-bytes"}
# What the results call them, and the configurations that they are.
NAMED = {"enwik8-base": "kimiyoung/enwik8-base", "wt103-base": "kimiyoung/wt103-base"}
SHAPES = (*NAMED, *SHIPPED)

_SEED = 0


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
    config, dialect = named_config(NAMED[name])
    recipe = json.dumps([config.to_dict(), dialect.to_dict(), _SEED, STD], sort_keys=True)
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    return Shape(name, config, dialect, CACHE / name / f"checkpoint-{digest[:12]}", digest)


def make_checkpoint(shape: Shape) -> bool:
    """Write the random weights of a named shape unless they are there; returns whether that was needed."""
    if shape.checkpoint.is_dir():
        return False
    native.save(shape.checkpoint, Checkpoint(shape.config, shape.dialect, random_weights(shape.config, _SEED)))
    return True
