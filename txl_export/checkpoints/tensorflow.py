"""Origin `tensorflow`: checkpoints of the authors' TensorFlow 1 code, read without TensorFlow.

Source of names and rules: kimiyoung/transformer-xl, `tf/model.py` and `tf/train_gpu.py`. A checkpoint holds
variables and no configuration: the architecture follows from their shapes, and the evaluation values come from a
`config.json` beside it (its keys as keras-transformer-xl writes them) or are the training script's own defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_export.checkpoints.base import Checkpoint, values_of
from txl_export.checkpoints.sstable import MAGIC
from txl_export.checkpoints.tensor_bundle import INDEX, TensorBundle
from txl_export.checkpoints.tensorflow_variables import Variables, architecture, canonical_weights
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError
from txl_export.files import read_json

# `_create_mask` lets a query see mem_len keys besides itself; memories start as zeros of the full length;
# `tf.contrib.layers.layer_norm` has this epsilon.
DIALECT = Dialect(initial_memory="zeros", window_extra=1, cluster_order="forward", layer_norm_eps=1e-12)
# Flags of `tf/train_gpu.py`, where no file beside the checkpoint says otherwise.
DEFAULTS: dict[str, Any] = {"mem_len": 70, "clamp_len": -1, "same_length": False}
_CONFIG_FILE, _CORPUS_FILE = "config.json", "corpus-info.json"
# Of the files that make a checkpoint; any of them names it.
_FILE_ENDS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def detect(path: Path) -> str | None:
    """Why `path` is of this origin, or None when it is not: a folder, one of its files, or their common PREFIX."""
    found = _indexes(path)
    return f"{found[0].name} is the index of a TensorFlow checkpoint" if found else None


def names_files(path: Path) -> bool:
    """Whether a path that is no file is the common beginning of a checkpoint's files, as TensorFlow's users name it."""
    return not path.exists() and bool(_indexes(path))


def load(path: Path, _given: Mapping[str, Any] | None = None, _with_vocab: bool = True) -> Checkpoint:
    """Read a checkpoint; raises CheckpointError or ConfigError."""
    index = _chosen(path)
    prefix = index.with_name(index.name.removesuffix(INDEX))
    variables = Variables(TensorBundle(prefix))
    config, assumed = _config(variables, prefix.parent)
    weights = canonical_weights(variables, config)
    where = path if path.exists() else index
    return Checkpoint(config, DIALECT, weights, origin="tensorflow", path=where, assumed=assumed)


def _indexes(path: Path) -> list[Path]:
    """Index files that a path means, the one that the folder's `checkpoint` names first."""
    if not path.is_dir():
        prefix = _FILE_ENDS.sub("", path.name)
        named = path.with_name(prefix + INDEX) if prefix else path
        return [named] if prefix and named.is_file() else []
    state = path / "checkpoint"
    latest = _latest(state) if state.is_file() else None
    found = sorted(p for p in path.glob(f"*{INDEX}") if p.is_file() and _is_table(p))
    return sorted(found, key=lambda p: p.name != latest)


def _is_table(path: Path) -> bool:
    """Whether a file ends as indexes do: others use that ending too."""
    with path.open("rb") as f:
        f.seek(max(0, path.stat().st_size - len(MAGIC)))
        return f.read() == MAGIC


def _latest(state: Path) -> str | None:
    """Index file of the newest checkpoint, from the text file that TensorFlow keeps beside them."""
    with state.open("rb") as f:
        text = f.read(1 << 16).decode(errors="replace")
    named = re.search(r'^model_checkpoint_path: "([^"\n]*)"', text, re.MULTILINE)
    return re.split(r"[/\\]", named[1])[-1] + INDEX if named else None


def _chosen(path: Path) -> Path:
    found = _indexes(path)
    if not found:
        raise CheckpointError(f"{path} is no TensorFlow checkpoint: it has no file that ends in {INDEX}")
    state = path / "checkpoint"
    if len(found) > 1 and not (state.is_file() and found[0].name == _latest(state)):
        raise CheckpointError(f"{path} holds {len(found)} checkpoints: name one of them, such as {found[-1]}")
    return found[0]


def _config(variables: Variables, folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The architecture, and those evaluation values that no file holds."""
    values = architecture(variables)
    beside = _read_beside(folder)
    for name, found in values.items():
        if name in beside and _plain(beside[name]) != _plain(found):
            raise CheckpointError(
                f"{folder / _CONFIG_FILE} says {name} {beside[name]!r}, the tensors {_plain(found)!r}: it is another "
                "model's; move it away"
            )
    stored = {name: beside[name] for name in DEFAULTS if name in beside}
    assumed = {name: value for name, value in DEFAULTS.items() if name not in stored}
    with values_of(folder / _CONFIG_FILE if stored else variables.source):
        return ModelConfig(**values, **stored, **assumed), assumed


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read_beside(folder: Path) -> dict[str, Any]:
    """Configuration values of the files beside a checkpoint, under our names; test values go before training's."""
    values: dict[str, Any] = {}
    for file in (folder / _CORPUS_FILE, folder / _CONFIG_FILE):
        found = read_json(file, CheckpointError) if file.is_file() else {}
        values |= found if isinstance(found, dict) else {}
    values |= {name: values[f"test_{name}"] for name in DEFAULTS if f"test_{name}" in values}
    ends = values.get("cutoffs")
    if isinstance(ends, list) and ends[:1] == [0]:  # upstream's list holds both ends
        values["cutoffs"] = ends[1:-1]
    return values
