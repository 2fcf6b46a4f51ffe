"""Weights in several files, with a JSON index that says which tensor is in which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from txl_export.errors import CheckpointError
from txl_export.files import inside, read_json

Reader = Callable[[Path], dict[str, np.ndarray]]


def read_shards(index: Path, read: Reader) -> dict[str, np.ndarray]:
    """All tensors of the files that an index names.

    Args:
        index: the JSON file; the shards lie beside it.
        read: reads one of them.

    Raises:
        CheckpointError: a shard is missing, lies elsewhere, lacks a tensor, or holds one that another holds too.
    """
    tensors: dict[str, np.ndarray] = {}
    for file, names in _by_file(index).items():
        path = inside(index.parent, file, CheckpointError)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, {index.name} names it: the folder is incomplete")
        found = read(path)
        if lacking := sorted(set(names) - set(found)):
            raise CheckpointError(f"{path} lacks {lacking[0]}, which {index.name} says it holds: it is of another save")
        if twice := sorted(set(found) & set(tensors)):
            raise CheckpointError(f"{path} holds {twice[0]}, as another shard does: they are of different saves")
        tensors |= found
    return tensors


def _by_file(index: Path) -> dict[str, list[str]]:
    value = read_json(index, CheckpointError)
    named = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise CheckpointError(f"{index} has no weight_map of tensors to files: it is no index of shards")
    files: dict[str, list[str]] = {}
    for name, file in named.items():
        files.setdefault(file, []).append(name)
    return files
