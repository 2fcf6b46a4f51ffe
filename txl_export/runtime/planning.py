"""Which calls run a feed: cut into segments, and segments into calls where that leaves the numbers unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from txl_export.errors import InputError
from txl_export.segments import SegmentRange


def cut(n: int, segment_len: int) -> list[int]:
    """Lengths of the segments of a feed of n tokens: `segment_len` each, and what is left."""
    return [min(segment_len, n - start) for start in range(0, n, segment_len)]


def plan_segment(n: int, graphs: Sequence[SegmentRange], cut_is_free: bool) -> list[int]:
    """Lengths of the calls that run one segment of n tokens.

    Args:
        n: tokens in the segment.
        graphs: call lengths that can be run.
        cut_is_free: whether a segment may be run in pieces, as under `same_length`, where what a query
            sees does not depend on where segments end.

    Raises:
        InputError: when no graph takes n tokens and cutting would change the numbers.
    """
    if any(n in g for g in graphs):
        return [n]
    if not cut_is_free:
        there = ", ".join(map(str, graphs))
        raise InputError(
            f"a segment of {n} tokens fits none of this bundle's segment lengths ({there}): "
            f"feed with segment_len={max(g.hi for g in graphs)} or export again with --segment-lens 1-{n}"
        )
    calls = []
    while n:
        call = max((min(g.hi, n) for g in graphs if g.lo <= n), default=0)
        if not call:
            raise InputError(f"no graph takes the last {n} tokens: export again with --segment-lens 1")
        calls.append(call)
        n -= call
    return calls
