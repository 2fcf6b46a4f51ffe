"""Loading of trained models. One module per origin, one line per origin in `ORIGINS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from txl_export.checkpoints import huggingface, kimiyoung, native, nvidia, pickles, tensorflow
from txl_export.checkpoints.adapters.applying import with_adapters
from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.vocabularies import with_vocabulary
from txl_export.config import ARCHITECTURE, apply_overrides
from txl_export.errors import CheckpointError
from txl_export.named_configs import config_names

__all__ = ["ORIGINS", "Checkpoint", "detect_origin", "load_checkpoint", "native"]


class Origin(Protocol):
    """A module that reads one origin's files."""

    def detect(self, path: Path) -> str | None:
        """Why `path` is of this origin, or None when it is not."""
        ...

    def load(self, path: Path, given: Mapping[str, Any] | None = None, with_vocab: bool = True, /) -> Checkpoint:
        """Read it; `given` holds the caller's overrides, for what the file does not say."""
        ...


# Folders that say what they are go first.
ORIGINS: dict[str, Origin] = {
    "native": native,
    "huggingface": huggingface,
    "tensorflow": tensorflow,
    "kimiyoung": kimiyoung,
    "nvidia": nvidia,
}

_WANTED = "give a folder with config.json and weights, a .pt file, or the beginning of a TensorFlow checkpoint's names"


def detect_origin(path: Path) -> tuple[str, str]:
    """Origin of a checkpoint and the reason for it, from its content.

    Raises:
        CheckpointError: when nothing is there or no origin recognises it.
    """
    with pickles.read_once():
        for name, origin in ORIGINS.items():
            if reason := origin.detect(path):  # before asking whether it exists: TensorFlow's names are of no file
                return name, reason
    if not path.exists():
        raise _absent(path)
    raise CheckpointError(f"{path} is no {' or '.join(ORIGINS)} checkpoint: {_WANTED}")


def load_checkpoint(
    path: str | Path,
    origin: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    vocabulary: str | Path | None = None,
    adapter: str | Path | Sequence[str | Path] | None = None,
) -> Checkpoint:
    """Load a trained Transformer-XL.

    Args:
        path: a folder or file of a known origin.
        origin: which implementation it comes from; None to detect it from the content.
        overrides: evaluation values in place of the stored ones, such as
            {"mem_len": 640, "same_length": True, "clamp_len": 400, "initial_memory": "empty"}. Of files that hold no
            configuration, also what of the model cannot be seen in the weights: {"pre_lnorm": True}.
        vocabulary: a file to take the vocabulary from in place of the stored one: a pickled `Vocab` or corpus, a
            tokenizer's vocab.pkl or vocab.bin, or text with a word per line; "bytes" for bytes,
            "none" for none, where the stored one cannot be read.
        adapter: a folder with a LoRA adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors), or
            several, which are merged into the weights in this order.

    Raises:
        CheckpointError: unreadable, incomplete, misshaped or not finite; a vocabulary or adapter of another model.
        ConfigError: a configuration or override that does not fit.
    """
    path = Path(path)
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    with pickles.read_once():
        name = origin or detect_origin(path)[0]
        if name not in ORIGINS:
            raise CheckpointError(f"origin {name!r} is unknown: use one of {', '.join(ORIGINS)}")
        if not path.exists() and not tensorflow.names_files(path):
            raise _absent(path)
        loaded = ORIGINS[name].load(path, given, vocabulary is None)
    if vocabulary is not None:
        loaded = with_vocabulary(loaded, vocabulary)
    config, dialect = apply_overrides(loaded.config, loaded.dialect, given)
    assumed = {k: v for k, v in loaded.assumed.items() if k not in given}
    notes = (*loaded.notes, *_assumptions(assumed))
    read = dataclasses.replace(loaded, config=config, dialect=dialect, overrides=given, assumed=assumed, notes=notes)
    folders = _folders(adapter)
    return with_adapters(read, folders) if folders else read


def _folders(adapter: str | Path | Sequence[str | Path] | None) -> list[Path]:
    listed = [adapter] if isinstance(adapter, str | Path) else adapter or ()
    folders = [Path(folder) for folder in listed]
    twice = next((f for i, f in enumerate(folders) if f.resolve() in {g.resolve() for g in folders[:i]}), None)
    if twice is not None:
        raise CheckpointError(f"adapter {twice} is given twice, and would be added twice: give it once")
    return folders


def _absent(path: Path) -> CheckpointError:
    """The error for a path that leads nowhere; names of configurations look like paths."""
    if str(path) in config_names():
        return CheckpointError(
            f"{path} is a configuration, which has no weights: give a checkpoint, or export random weights with "
            "--random-weights SEED"
        )
    return CheckpointError(f"{path} does not exist: {_WANTED}")


def _assumptions(assumed: Mapping[str, Any]) -> list[str]:
    listed = ", ".join(f"{name} {value}" for name, value in assumed.items())
    flags = ", ".join(f"--set {n}=..." if n in ARCHITECTURE else f"--{n.replace('_', '-')}" for n in assumed)
    return [f"the files do not say {listed}: these are defaults, give what was trained with ({flags})"] * bool(assumed)
