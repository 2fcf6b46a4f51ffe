"""Before a checkpoint with adapters is exported: merged, it gives what base and adapters give side by side."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.checkpoints.adapters.applying import unmerged
from txl_export.errors import CheckpointError, ToleranceError
from txl_export.reference import TransformerXL
from txl_export.reference.unmerged import Unmerged
from txl_export.verification.report import NOISE_FACTOR, TOLERANCES

# Short segments and a shorter memory, so that it has wrapped more than twice and costs little.
_SEGMENTS, _LENGTH, _MEMORY = 5, 6, 10


def check_merge(checkpoint: Checkpoint, merged: TransformerXL, mem_len: int) -> float:
    """Compare log-probabilities of the merged model and of the unmerged one, over several segments.

    The model without adapters is read again for it, and let go of.

    Args:
        checkpoint: with adapters.
        merged: its model.
        mem_len: memory length M in tokens; a shorter memory is used where it is long.

    Returns:
        the largest difference, in nats.

    Raises:
        CheckpointError: the checkpoint or an adapter is no longer there.
        ToleranceError: they differ by more than rounding.
    """
    if checkpoint.path is None:
        raise CheckpointError(
            "a checkpoint with adapters that was made in memory cannot be checked: load it from files"
        )
    base = load_checkpoint(checkpoint.path, checkpoint.origin, checkpoint.overrides)
    ids = _tokens(checkpoint)
    M = min(mem_len, _MEMORY)
    expected = _unmerged_log_probs(base, [a.path for a in checkpoint.adapters], ids, M)
    found = _log_probs(merged, ids, M)
    apart = float((found - expected).abs().max())
    limit = TOLERANCES["fp32"].log_probs
    assert limit is not None
    if not apart <= limit:  # the model's own rounding may be larger than the limit
        limit = max(limit, NOISE_FACTOR * float((found - _log_probs(_double(checkpoint), ids, M)).abs().max()))
    if not apart <= limit:
        names = ", ".join(str(a.path) for a in checkpoint.adapters)
        raise ToleranceError(
            f"merged, {names} moves log-probabilities by {apart:.1e} from the unmerged model, expected at most "
            f"{limit:.1e}: nothing was exported"
        )
    return apart


def _tokens(checkpoint: Checkpoint) -> Tensor:
    """Random tokens [1, n], of every cluster: each has tables of its own."""
    generator, ends = torch.Generator().manual_seed(0), checkpoint.config.cluster_ends
    spans = [ends[i % (len(ends) - 1) :][:2] for i in range(_SEGMENTS * _LENGTH)]
    return torch.stack([torch.randint(low, high, (1,), generator=generator) for low, high in spans], dim=1)


def _unmerged_log_probs(base: Checkpoint, folders: list[Path], ids: Tensor, M: int) -> Tensor:
    apart, updates = unmerged(base, folders)
    model = TransformerXL.from_checkpoint(apart)
    with Unmerged(model, updates):
        return _log_probs(model, ids, M)


def _log_probs(model: TransformerXL, ids: Tensor, M: int) -> Tensor:
    """[1, n] -> [1, n, V] in float64, the memory fed back."""
    memory, parts = None, []
    with torch.no_grad():
        for segment in ids.split(_LENGTH, dim=1):
            log_probs, memory = model(segment, memory, M)
            parts.append(log_probs.double())
    return torch.cat(parts, dim=1)


def _double(checkpoint: Checkpoint) -> TransformerXL:
    return TransformerXL.from_checkpoint(checkpoint).double()
