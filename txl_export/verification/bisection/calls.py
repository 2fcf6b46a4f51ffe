"""The calls of a verification: which tokens the graph gets at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from txl_export import calls as planned
from txl_export.backends.base import Streams
from txl_export.backends.ring import RingStreams
from txl_export.heads import HeadSpec
from txl_export.tokens import Tokens


@dataclass(frozen=True)
class Call:
    """One run of a graph.

    Attributes:
        segment: number of the segment that it belongs to.
        start: tokens that each stream had consumed before it.
        ids: int64 [B, n], those that count.
        targets: int64 [B, n] or [B, 1] for a head that takes them.
        step: the call as a session plans it: tokens that the graph takes, padding included, and how many of the
            segment were read before.
        last_only: whether the head answers for the last token that the graph takes only.
    """

    segment: int
    start: int
    ids: np.ndarray
    targets: np.ndarray | None
    step: planned.Call
    last_only: bool = False

    @property
    def batch_size(self) -> int:
        """B."""
        return int(self.ids.shape[0])

    @property
    def valid(self) -> int:
        """Tokens that count."""
        return int(self.ids.shape[1])

    @property
    def offset(self) -> int:
        """Tokens of the segment that earlier calls read."""
        return int(self.step.offsets[0])

    @property
    def padded(self) -> bool:
        """Whether the graph takes more tokens than count."""
        return self.valid < self.step.length

    @property
    def tokens(self) -> dict[str, np.ndarray]:
        """Tokens and targets as the graph takes them."""
        found = {"input_ids": _filled(self.ids, self.step.length)}
        if self.targets is not None:
            found["targets"] = self.targets if self.last_only else _filled(self.targets, self.step.length)
        return found


def _filled(ids: np.ndarray, length: int) -> np.ndarray:
    """Tokens with the last one repeated up to a length."""
    return np.ascontiguousarray(np.pad(ids, ((0, 0), (0, length - ids.shape[1])), mode="edge"))


def calls(tokens: Tokens, segment_len: int, head: HeadSpec, streams: Streams, last: int) -> list[Call]:
    """The calls of the segments 0 to `last`, as `verify` runs them.

    Args:
        tokens: what is run.
        segment_len: tokens per segment.
        head: what calls are asked for.
        streams: of a fresh session, which plans; nothing is run on it.
        last: number of the last segment.
    """
    made = []
    n = tokens.ids.shape[1] - 1
    for segment in range(last + 1):
        start = segment * segment_len
        counts = np.full(streams.batch_size, min(segment_len, n - start))
        for step in streams.plan(counts, segment_len, head.last_only):
            made.append(_call(tokens, segment, start + int(step.starts[0]), head, step))
            if isinstance(streams, RingStreams):
                streams.ring.advance(step.valid, step.length)
    return made


def _call(tokens: Tokens, segment: int, start: int, head: HeadSpec, step: planned.Call) -> Call:
    end = start + int(step.valid[0])
    y = tokens.ids[:, start + 1 : end + 1]
    asked = y[:, -1:] if head.last_only else y
    targets = np.ascontiguousarray(asked) if head.takes_targets else None
    return Call(segment, start, np.ascontiguousarray(tokens.ids[:, start:end]), targets, step, head.last_only)
