"""Targets of a benchmark: a bundle or a checkpoint, and how it is had at any memory length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.backends.base import identity
from txl_export.benchmarking.process import Source
from txl_export.bundle import CHECKPOINT, MANIFEST, Bundle
from txl_export.calls import plan_segment
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import BundleError, InputError
from txl_export.layouts import DEFAULT_LAYOUT, layout_of
from txl_export.precision import PrecisionPolicy
from txl_export.segments import SegmentRange
from txl_export.vocabulary import Vocabulary

Given = str | Path | Bundle | Checkpoint
HEAD, SEGMENT_LEN = "log_probs", 64  # of a checkpoint, as a default export has them
# Values of a configuration that leave the time of a call alone, or that a cell sets itself.
_FREE = ("mem_len", "dropout", "dropatt")


@dataclass(frozen=True)
class Target:
    """A bundle or checkpoint that was found readable.

    Attributes:
        name: as it was given.
        path: where it is.
        bundle: opened; None for a checkpoint.
        read: how the checkpoint was read; None for a bundle.
        config: the architecture, with evaluation values.
        dialect: the origin's behaviours.
        head: what calls return, on every backend.
        vocab: text to ids, where known.
        digest: tells its content from another's under the same name.
    """

    name: str
    path: Path
    bundle: Bundle | None
    read: Source | None
    config: ModelConfig
    dialect: Dialect
    head: str
    vocab: Vocabulary | None
    digest: str

    @classmethod
    def open(cls, given: Given) -> Target:
        """Open a target; raises InputError, BundleError, CheckpointError or ConfigError."""
        if isinstance(given, Checkpoint):
            return cls._of_checkpoint(given, given.path, given.origin)
        path = given.path if isinstance(given, Bundle) else Path(given)
        if not (path / MANIFEST).is_file():
            return cls._of_checkpoint(load_checkpoint(path), path, None)
        m = (bundle := Bundle.open(path)).manifest
        head = HEAD if HEAD in m.heads else m.heads[0]
        return cls(str(path), path, bundle, None, m.config, m.dialect, head, bundle.vocab, m.to_dict()["digest"])

    @classmethod
    def _of_checkpoint(cls, c: Checkpoint, path: Path | None, origin: str | None) -> Target:
        if path is None:
            raise InputError("a checkpoint in memory cannot be timed, other processes load it: save it, give the path")
        read = Source(path, origin, dict(c.overrides), tuple(a.path for a in c.adapters))
        return cls(str(path), path, None, read, c.config, c.dialect, HEAD, c.vocab, _digest(c))

    @property
    def mem_len(self) -> int:
        """Its own M."""
        return self.bundle.manifest.mem_len if self.bundle else self.config.mem_len

    @property
    def layout(self) -> str:
        """Its own layout, or what exports have by default."""
        return self.bundle.manifest.layout if self.bundle else DEFAULT_LAYOUT

    @property
    def policy(self) -> PrecisionPolicy:
        """Its own precision, which exports of it at other memory lengths have too; fp32 for a checkpoint."""
        return self.bundle.manifest.policy if self.bundle else PrecisionPolicy()

    @property
    def segment_len(self) -> int:
        """Tokens per segment that it reads text in, unless told otherwise."""
        return self.bundle.manifest.segment_len if self.bundle else SEGMENT_LEN

    @property
    def segments(self) -> tuple[SegmentRange, ...]:
        """The bundle's segment lengths, in the order in which the runtime prefers them; () for a checkpoint."""
        found = {g.segment for g in self.bundle.manifest.graphs} if self.bundle else set()
        return tuple(sorted(found, key=lambda s: (s.hi - s.lo, s)))

    def holds(self, layout: str, mem_len: int) -> bool:
        """Whether the bundle itself is what is asked for: one whose memory is written in place has every shorter M."""
        if self.bundle is None or layout != self.layout:
            return False
        return mem_len <= self.mem_len if layout_of(layout).in_place else mem_len == self.mem_len

    def check_segment(self, length: int) -> None:
        """Raise InputError when the bundle does not run segments of this length."""
        if not self.bundle:
            return
        m, same_length = self.bundle.manifest, self.config.same_length
        if m.traits.in_place and not same_length and length > m.reach:
            raise InputError(
                f"{self.name} runs no segments of {length} tokens (up to {m.reach}): choose other --segment-lens, "
                f"export again with --segment-len {length}, or bench the checkpoint"
            )
        try:
            plan_segment(length, self.segments, same_length or m.traits.in_place)
        except InputError:
            there = ", ".join(map(str, self.segments))
            raise InputError(
                f"{self.name} runs no segments of {length} tokens (it has {there}): choose other --segment-lens, "
                f"export again with {length} among its --segment-lens, or bench the checkpoint"
            ) from None

    def graphs_for(self, layout: str, lengths: Sequence[int]) -> list[str]:
        """Segment lengths to export so that each of `lengths` runs on the graph that the bundle has for it.

        A memory that is written in place has rows for the longest call, and calls of any length may stand for each
        other: there it is all of the bundle's graphs, or what an export of the longest of `lengths` has.
        """
        traits = layout_of(layout)
        if traits.in_place:
            usual = [n for n in traits.segment_lens if n < max(lengths)]
            return [str(s) for s in self.segments or traits.graphs(sorted({*usual, *lengths}), True)]
        graphs: list[SegmentRange] = []
        for n in lengths:
            own = [s for s in self.segments if n in s][:1]
            # Nothing takes it whole: with `same_length` it runs in pieces, on any of the bundle's graphs.
            graphs += own or self.segments or [SegmentRange(n, n)]
        return [str(s) for s in dict.fromkeys(graphs)]

    def ring_options(self, layout: str, lengths: Sequence[int]) -> dict[str, Any]:
        """What an export whose memory is written in place is told, so that it has as many rows as the bundle."""
        if not layout_of(layout).in_place:
            return {}
        m = self.bundle.manifest if self.bundle else None
        return {"segment_len": max(*lengths, m.segment_len if m else 1), "rewind": m.rewind if m else 0}

    @property
    def source(self) -> Source:
        """The checkpoint behind it, which eager runs and exports are made of; raises BundleError when it is gone."""
        if self.read:
            return self.read
        assert self.bundle is not None
        recorded, path = self.bundle.manifest.judge, self.bundle.judge_path
        if path is None:
            was = f", it was at {recorded['path']!r}" if recorded.get("path") else ""
            raise BundleError(
                f"the checkpoint of {self.name} is gone{was}: bench the checkpoint itself, export again with "
                f"--keep-checkpoint, or leave eager and other memory lengths out (--backends onnxruntime "
                f"--mem-lens {self.mem_len})"
            )
        kept = path == self.bundle.path / CHECKPOINT  # a copy, native whatever its origin was
        adapters = () if kept else self.bundle.judge_adapters
        return Source(path, None if kept else recorded.get("origin"), dict(recorded.get("overrides", {})), adapters)

    def checkpoint(self) -> Checkpoint:
        """Load that checkpoint.

        Raises:
            BundleError: it is gone, or another model than the bundle's.
            CheckpointError: it cannot be read.
        """
        source = self.source
        found = load_checkpoint(source.path, source.origin, source.overrides, adapter=source.adapters)
        theirs, ours = found.config.to_dict(), self.config.to_dict()
        odd = [k for k in ours if ours[k] != theirs[k] and k not in _FREE]
        if odd:
            raise BundleError(
                f"{source.path} has {odd[0]} {theirs[odd[0]]!r}, {self.name} was made with {ours[odd[0]]!r}: "
                f"it is another model now, export again"
            )
        return found


def _digest(checkpoint: Checkpoint) -> str:
    """Of all that a checkpoint's answers depend on."""
    weights = hashlib.sha256()
    for name, w in checkpoint.weights.items():
        weights.update(name.encode() + np.ascontiguousarray(w).tobytes())
    return identity(checkpoint.config, checkpoint.dialect, weights.hexdigest())
