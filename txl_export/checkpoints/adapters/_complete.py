"""Whether a file holds what its configuration says was trained, and of the model at hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from txl_export.checkpoints.adapters._contents import Contents
from txl_export.checkpoints.adapters._record import CONFIG_FILE
from txl_export.checkpoints.adapters._settings import Settings
from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.pickles import shown
from txl_export.errors import CheckpointError

_BASE = "transformer."  # what names of Hugging Face's model start with
_KINDS = {
    "linear": re.compile(r"\.(?:(?:qkv|r|o)_net|CoreNet\.[03])\.weight$"),
    "embedding": re.compile(r"word_emb\.emb_layers\.\d+\.weight$"),
    "unused": re.compile(r"crit\.out_layers\.\d+\.weight$"),
}
_CLUSTERS = ("crit.cluster_weight", "crit.cluster_bias")


def check_complete(contents: Contents, settings: Settings, known: Iterable[str], file: Path) -> None:
    """What the configuration says was trained must be there: an adapter of a shallower model fits otherwise."""
    names = [*contents.modules, *contents.whole]
    theirs = any(name.startswith(_BASE) for name in names)
    modules = (n.removesuffix(".weight") for n in known if n.endswith(".weight") and kind_of(n) is not None)
    same = [m for m in modules if m.startswith("crit.") or m.startswith(_BASE) == theirs]
    missing = [m for m in settings.expected(same) if m not in contents.modules]
    if missing:
        raise CheckpointError(
            f"{file} has nothing for {missing[0]}, which target_modules name: it is incomplete or of another model"
        )
    for name in settings.modules_to_save:
        if not any(f".{name}." in f".{tensor}." for tensor in contents.whole):
            raise CheckpointError(f"{file} lacks {shown(name)}, which modules_to_save name: the file is incomplete")
    lost = _lost_biases(contents, settings, known)
    if lost:
        raise CheckpointError(
            f"{file} lacks {lost[0]}, which bias {settings.bias!r} in {CONFIG_FILE} says was trained: some versions of "
            "PEFT do not save it; add it to the file, or set bias to none to go without"
        )


def _lost_biases(contents: Contents, settings: Settings, known: Iterable[str]) -> list[str]:
    """Biases that the configuration says were trained and that are not there; one of them is enough for "all"."""
    if settings.bias == "lora_only":
        return [b for b in (f"{m}.bias" for m in sorted(contents.modules)) if b in known and b not in contents.whole]
    there = settings.bias == "none" or any("bias" in name for name in contents.whole)
    return [] if there else ["biases"]


def check_clusters(contents: Contents, checkpoint: Checkpoint, file: Path) -> None:
    """Rows of the tail clusters are in the order of the model that was trained, which names tell where they differ."""
    names = [*contents.modules, *contents.whole]
    bodies = [n.startswith(_BASE) for n in names if not n.startswith("crit.")]
    if checkpoint.config.n_tails < 2 or not bodies or not any(n in contents.whole for n in _CLUSTERS):
        return
    theirs = "forward" if any(bodies) else "reversed"
    if theirs != checkpoint.dialect.cluster_order:
        raise CheckpointError(
            f"{file} holds {_CLUSTERS[0]} of a model with its tail clusters {theirs}, this checkpoint has them "
            f"{checkpoint.dialect.cluster_order}: give the checkpoint that the adapter was trained on"
        )


def kind_of(name: str) -> str | None:
    """What runs a matrix, by its name in a file; None for other tensors."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), None)
