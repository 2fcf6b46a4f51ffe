"""The judge of a bundle: the checkpoint that it was exported from, as it was evaluated then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from txl_export.bundle import CHECKPOINT, Bundle
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.config import OVERRIDABLE_CONFIG, OVERRIDABLE_DIALECT
from txl_export.errors import InputError, TxlError
from txl_export.random_weights import random_checkpoint

# What a judge may have otherwise: the memory length is the bundle's, dropout plays no part in evaluation, and another
# origin's file holds the rows of the clusters in another order.
_FREE = ("mem_len", "dropout", "dropatt", "cluster_order")


def judge_of(
    bundle: Bundle,
    given: str | Path | Checkpoint | None = None,
    adapter: str | Path | Sequence[str | Path] = (),
) -> tuple[Checkpoint, tuple[str, ...]]:
    """The checkpoint that a bundle is compared with, with the evaluation values it was exported with.

    Args:
        bundle: whose manifest says where the checkpoint was.
        given: another path or a loaded checkpoint; None for the bundle's `judge`, else the recorded one.
        adapter: where the adapters are that a checkpoint of files lacks; () for the recorded ones.

    Returns:
        the checkpoint, and what a reader of the comparison should know.

    Raises:
        InputError: it or an adapter is not there, or the bundle was not exported from it.
        CheckpointError: it cannot be read.
    """
    if bundle.judge is not None and given is None:
        return bundle.judge, ()
    recorded = bundle.manifest.judge
    judge = _found(bundle, given, adapter)
    ours, theirs = ({**m.config.to_dict(), **m.dialect.to_dict()} for m in (bundle.manifest, judge))
    odd = [k for k in ours if ours[k] != theirs[k] and k not in _FREE]
    if odd:
        kind = "evaluated with" if odd[0] in OVERRIDABLE_CONFIG + OVERRIDABLE_DIALECT else "exported from a model with"
        raise InputError(
            f"{judge.path or 'the judge'} has {odd[0]} {theirs[odd[0]]!r}, the bundle was {kind} {ours[odd[0]]!r}: "
            "give the checkpoint that it was exported from"
        )
    return judge, _changed_note(judge, recorded) + _changed_adapters(judge, recorded)


def _found(
    bundle: Bundle, given: str | Path | Checkpoint | None, adapter: str | Path | Sequence[str | Path]
) -> Checkpoint:
    """The given checkpoint, the recorded one, or recorded random weights drawn again; raises InputError for none."""
    recorded, drawn = bundle.manifest.judge, bundle.manifest.random
    path = bundle.judge_path if given is None else given
    overrides: dict[str, Any] = dict(recorded.get("overrides", {}))
    if path is None and drawn:
        return random_checkpoint(drawn.name, drawn.seed, overrides)
    if path is None:
        where = f"is not at {recorded['path']!r}" if recorded.get("path") else "is not recorded"
        raise InputError(
            f"the checkpoint of {bundle.path} {where}: say where it is with verify's --checkpoint, "
            "or export with --keep-checkpoint"
        )
    # The recorded origin belongs to the recorded path: a copy in the bundle is native, another file is looked at.
    kept = path == bundle.path / CHECKPOINT
    origin = recorded.get("origin") if given is None and not kept else None
    if isinstance(path, Checkpoint):
        return path
    # A copy in the bundle has its adapters merged.
    adapters = adapter if kept or adapter else _recorded_adapters(bundle)
    return load_checkpoint(path, origin, overrides, adapter=adapters)


def _recorded_adapters(bundle: Bundle) -> tuple[Path, ...]:
    """The adapters that the manifest names; raises InputError where one is not there."""
    for folder, recorded in zip(bundle.judge_adapters, bundle.manifest.judge.get("adapters", ()), strict=True):
        if not folder.exists():
            raise InputError(
                f"the adapter of {bundle.path} is not at {recorded['path']!r}: say where it is with verify's "
                "--adapter, or export with --keep-checkpoint"
            )
    return bundle.judge_adapters


def _changed_adapters(judge: Checkpoint, recorded: Mapping[str, Any]) -> tuple[str, ...]:
    hashes = ("sha256", "config_sha256")
    pairs = zip(judge.adapters, recorded.get("adapters", ()), strict=False)
    changed = [now.path for now, then in pairs if any(getattr(now, h) != then[h] for h in hashes)]
    return tuple(f"the adapter {path} has changed since the export" for path in changed)


def _changed_note(judge: Checkpoint, recorded: Any) -> tuple[str, ...]:
    from txl_export.graphs.export import weights_hash

    if judge.path is None or not recorded.get("sha256") or judge.origin != recorded.get("origin"):
        return ()
    try:
        same = weights_hash(judge.path) == recorded["sha256"]
    except (OSError, TxlError):
        return ()
    return () if same else (f"{judge.path} has changed since the export",)
