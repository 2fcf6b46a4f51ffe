"""Origin `native`: a folder with `config.json` and `model.safetensors`, under this package's own names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_export.checkpoints.base import Checkpoint, RandomWeights, values_of
from txl_export.checkpoints.tensors import read_safetensors, write_safetensors
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError, InputError
from txl_export.files import disk_errors, read_json, replacing_folder, write_atomic, write_json
from txl_export.vocabulary import load_vocabulary

FORMAT = "txl-export"
SCHEMA = 1
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


def detect(path: Path) -> str | None:
    """Why `path` is of this origin, or None when it is not."""
    config = path / CONFIG_FILE
    if not config.is_file():
        return None
    value = read_json(config, CheckpointError)
    return (
        f'{CONFIG_FILE} says format "{FORMAT}"' if isinstance(value, dict) and value.get("format") == FORMAT else None
    )


def load(path: Path, _given: Mapping[str, Any] | None = None, with_vocab: bool = True) -> Checkpoint:
    """Read a native checkpoint; raises CheckpointError or ConfigError."""
    value = read_json(path / CONFIG_FILE, CheckpointError)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path / CONFIG_FILE} holds {type(value).__name__}, expected an object")
    if value.get("schema", 0) != SCHEMA:
        raise CheckpointError(
            f"{path / CONFIG_FILE} has schema {value.get('schema')!r}, this version reads {SCHEMA}: update txl-export"
        )
    with values_of(path / CONFIG_FILE):
        config = ModelConfig.from_dict(_object(value, "model", path))
        dialect = Dialect.from_dict(_object(value, "dialect", path))
    return Checkpoint(
        config=config,
        dialect=dialect,
        weights=read_safetensors(path / WEIGHTS_FILE),
        origin="native",
        path=path,
        vocab=load_vocabulary(value.get("vocabulary"), path) if with_vocab else None,
        **_drawn(value.get("random"), path),
    )


def _drawn(value: Any, path: Path) -> dict[str, Any]:
    """That the weights were drawn, not trained, where the configuration says so."""
    if value is None:
        return {}
    try:
        random = RandomWeights.from_dict(value)
    except (TypeError, ValueError, InputError) as e:
        raise CheckpointError(f"{path / CONFIG_FILE}: random is damaged ({e})") from None
    return {"random": random, "notes": (random.note,)}


def _object(value: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = value.get(key)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path / CONFIG_FILE} lacks the object '{key}'")
    return found


def save(path: Path | str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint as `native`, replacing a native checkpoint that is there; other files are kept.

    Args:
        path: the folder.
        checkpoint: what to write.

    Returns:
        The folder.
    """
    path = Path(path)
    if not path.exists():
        with replacing_folder(path) as work:
            _write(work, checkpoint)
        return path
    # All files are complete before one takes its place.
    with disk_errors(path), tempfile.TemporaryDirectory(dir=path, prefix=".save.") as work:
        _write(Path(work), checkpoint)
        beside = checkpoint.vocab.files() if checkpoint.vocab else {}
        for name in (*beside, WEIGHTS_FILE, CONFIG_FILE):
            (Path(work) / name).replace(path / name)
    return path


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    write_safetensors(folder / WEIGHTS_FILE, checkpoint.weights)
    config: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "model": checkpoint.config.to_dict(),
        "dialect": checkpoint.dialect.to_dict(),
    }
    if checkpoint.random is not None:
        config["random"] = checkpoint.random.to_dict()
    if checkpoint.vocab is not None:
        config["vocabulary"] = checkpoint.vocab.to_dict()
        for name, content in checkpoint.vocab.files().items():
            write_atomic(folder / name, content)
    write_json(folder / CONFIG_FILE, config)
