"""The calls of a verification: which tokens the graph gets at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from txl_export.backends.base import ModelInfo
from txl_export.calls import plan_segment
from txl_export.heads import HeadSpec
from txl_export.tokens import Tokens


@dataclass(frozen=True)
class Call:
    """One run of a graph.

    Attributes:
        segment: number of the segment that it belongs to.
        start: tokens that each stream had consumed before it.
        ids: int64 [B, L].
        targets: int64 [B, L] or [B, 1] for a head that takes them.
    """

    segment: int
    start: int
    ids: np.ndarray
    targets: np.ndarray | None


def calls(tokens: Tokens, segment_len: int, head: HeadSpec, info: ModelInfo, last: int) -> list[Call]:
    """The calls of the segments 0 to `last`, as `verify` runs them."""
    made = []
    n = tokens.ids.shape[1] - 1
    for segment in range(last + 1):
        start = segment * segment_len
        length = min(segment_len, n - start)
        for step in plan_segment(length, info.segments, info.config.same_length):
            span = slice(start, start + step)
            y = tokens.ids[:, start + 1 : start + step + 1]
            asked = y[:, -1:] if head.last_only else y
            targets = np.ascontiguousarray(asked) if head.takes_targets else None
            made.append(Call(segment, start, np.ascontiguousarray(tokens.ids[:, span]), targets))
            start += step
    return made
