"""The judge of a bundle: the checkpoint that it was exported from, as it was evaluated then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txl_export.bundle import CHECKPOINT, Bundle
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.config import OVERRIDABLE_CONFIG, OVERRIDABLE_DIALECT
from txl_export.errors import InputError, TxlError

# What a judge may have otherwise: the memory length is the bundle's, dropout plays no part in evaluation, and another
# origin's file holds the rows of the clusters in another order.
_FREE = ("mem_len", "dropout", "dropatt", "cluster_order")


def judge_of(bundle: Bundle, given: str | Path | Checkpoint | None = None) -> tuple[Checkpoint, tuple[str, ...]]:
    """The checkpoint that a bundle is compared with, with the evaluation values it was exported with.

    Args:
        bundle: whose manifest says where the checkpoint was.
        given: another path or a loaded checkpoint; None for the bundle's `judge`, else the recorded one.

    Returns:
        the checkpoint, and what a reader of the comparison should know.

    Raises:
        InputError: it is not there, or the bundle was not exported from it.
        CheckpointError: it cannot be read.
    """
    if bundle.judge is not None and given is None:
        return bundle.judge, ()
    recorded = bundle.manifest.judge
    path = bundle.judge_path if given is None else given
    if path is None:
        where = f"is not at {recorded['path']!r}" if recorded.get("path") else "is not recorded"
        raise InputError(
            f"the checkpoint of {bundle.path} {where}: say where it is with verify's --checkpoint, "
            "or export with --keep-checkpoint"
        )
    overrides: dict[str, Any] = dict(recorded.get("overrides", {}))
    # The recorded origin belongs to the recorded path: a copy in the bundle is native, another file is looked at.
    origin = recorded.get("origin") if given is None and path != bundle.path / CHECKPOINT else None
    judge = path if isinstance(path, Checkpoint) else load_checkpoint(path, origin, overrides)
    ours, theirs = ({**m.config.to_dict(), **m.dialect.to_dict()} for m in (bundle.manifest, judge))
    odd = [k for k in ours if ours[k] != theirs[k] and k not in _FREE]
    if odd:
        kind = "evaluated with" if odd[0] in OVERRIDABLE_CONFIG + OVERRIDABLE_DIALECT else "exported from a model with"
        raise InputError(
            f"{judge.path} has {odd[0]} {theirs[odd[0]]!r}, the bundle was {kind} {ours[odd[0]]!r}: "
            "give the checkpoint that it was exported from"
        )
    return judge, _changed_note(judge, recorded)


def _changed_note(judge: Checkpoint, recorded: Any) -> tuple[str, ...]:
    from txl_export.graphs.export import weights_hash

    if judge.path is None or not recorded.get("sha256") or judge.origin != recorded.get("origin"):
        return ()
    try:
        same = weights_hash(judge.path) == recorded["sha256"]
    except (OSError, TxlError):
        return ()
    return () if same else (f"{judge.path} has changed since the export",)
