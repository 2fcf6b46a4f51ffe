"""From a checkpoint and an adapter to a checkpoint with the adapter in its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from txl_export.checkpoints.adapters._change import Change, read_change
from txl_export.checkpoints.adapters._sites import no_longer_shared, tied_as, untied, untied_config
from txl_export.checkpoints.adapters.updates import Update, merged_matrix
from txl_export.checkpoints.base import Checkpoint
from txl_export.config import ModelConfig
from txl_export.errors import CheckpointError


def with_adapters(checkpoint: Checkpoint, folders: Sequence[Path]) -> Checkpoint:
    """Merge adapters: the checkpoint as the adapted model computes, which is not always as PEFT merges it.

    What the model shares between modules and an adapter changes for one of them is stored apart afterwards: an
    adapter on a tied embedding leaves the softmax as it was in training, while PEFT's `merge_and_unload` adds it to
    the one tensor, and so changes both.

    Args:
        checkpoint: the model that they were trained on.
        folders: of each what PEFT's `save_pretrained` wrote: adapter_config.json and adapter_model.safetensors. Each
            is merged into what the one before gave.

    Raises:
        CheckpointError: one is no LoRA adapter, cannot be merged, is damaged, or was trained on another model.
    """
    weights = untied(checkpoint.config, checkpoint.weights)
    changes = [read_change(checkpoint, folder) for folder in folders]
    for change in changes:
        weights |= change.whole
        for name, update in change.updates.items():
            weights[name] = _finite(merged_matrix(weights[name], update), name, change)
            if name in change.biases:
                bias = change.biases[name]
                weights[bias] = _finite(_merged_bias(weights[bias], update), bias, change)
    config, tied = tied_as(checkpoint.config, weights)
    return dataclasses.replace(
        checkpoint,
        config=config,
        weights=tied,
        adapters=tuple(change.record for change in changes),
        notes=(*checkpoint.notes, *_notes(checkpoint.config, config)),
    )


def unmerged(checkpoint: Checkpoint, folders: Sequence[Path]) -> tuple[Checkpoint, dict[str, list[Update]]]:
    """What `with_adapters` merges, not merged.

    Returns:
        the model with nothing shared and what adapters hold whole in place; and by matrix what is to be added to it,
        in this order.
    """
    weights = untied(checkpoint.config, checkpoint.weights)
    updates: dict[str, list[Update]] = {}
    for folder in folders:
        change = read_change(checkpoint, folder)
        weights |= change.whole
        updates = {name: listed for name, listed in updates.items() if name not in change.whole}
        for name, update in change.updates.items():
            updates.setdefault(name, []).append(update)
    return dataclasses.replace(checkpoint, config=untied_config(checkpoint.config), weights=weights), updates


def _merged_bias(bias: np.ndarray, update: Update) -> np.ndarray:
    assert update.bias is not None
    merged: np.ndarray = (bias.astype(np.float64) + update.scale * update.bias.astype(np.float64)).astype(np.float32)
    return merged


def _finite(merged: np.ndarray, name: str, change: Change) -> np.ndarray:
    if not np.isfinite(merged).all():
        where = change.record.path
        raise CheckpointError(f"{where}: {name} with it holds NaN or Inf: the adapter is damaged or of another model")
    return merged


def _notes(before: ModelConfig, after: ModelConfig) -> tuple[str, ...]:
    apart = no_longer_shared(before, after)
    if not apart:
        return ()
    return (
        f"the adapter changes one side of what the model shares: {', '.join(apart)} are apart now, as they were in "
        "training (PEFT's own merge_and_unload may change both)",
    )
