"""Which calls run a feed: cut into segments, and segments into calls where that leaves the numbers unchanged."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from txl_export.cost import call_cost
from txl_export.errors import InputError
from txl_export.ring import Ring
from txl_export.segments import SegmentRange

if TYPE_CHECKING:
    from txl_export.backends.base import ModelInfo


class Rates(NamedTuple):
    """About what a machine reaches; they only choose between calls that give the same numbers.

    Attributes:
        read: bytes per second.
        flops: per second.
        call: seconds that a call costs anyway.
    """

    read: float
    flops: float
    call: float


ON_CPU = Rates(2.2e10, 1.1e11, 5e-4)  # ONNX Runtime's; `python -m benchmarks.runtime calls` compares
ON_GPU = Rates(1e12, 2e13, 5e-5)  # of no GPU in particular: some microseconds to launch, and bandwidth beyond that
MOST_PLANNED = 4  # longest calls that are planned at once: what comes later does not change the first


class Call(NamedTuple):
    """One run of a graph on B streams.

    Attributes:
        length: tokens that the graph takes.
        starts: where each stream's tokens begin in the feed, int64 [B].
        valid: tokens of the call that count, int64 [B]; the rest is padding.
        offsets: tokens of each stream's segment that earlier calls read, int64 [B].
        whole: whether all streams begin at the same token and none is padded.
    """

    length: int
    starts: np.ndarray
    valid: np.ndarray
    offsets: np.ndarray
    whole: bool

    def counted(self, last_only: bool, counts: np.ndarray) -> list[tuple[int, int, int]]:
        """Which answers count: (stream, where its answer begins in the feed's, how many).

        Args:
            last_only: whether only each stream's last token is answered.
            counts: tokens of each stream in the feed, int64 [B].
        """
        streams = np.flatnonzero(self.valid).tolist()
        if last_only:
            ends = self.starts + self.valid
            return [(b, 0, 1) for b in streams if ends[b] == counts[b]]
        return [(b, int(self.starts[b]), int(self.valid[b])) for b in streams]


def cut(n: int, segment_len: int) -> list[int]:
    """Lengths of the segments of a feed of n tokens: `segment_len` each, and what is left."""
    return [min(segment_len, n - start) for start in range(0, n, segment_len)]


def plan_segment(n: int, graphs: Sequence[SegmentRange], cut_is_free: bool) -> list[int]:
    """Lengths of the calls that run one segment of n tokens, where a call advances all streams by its length.

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


def whole_calls(batch_size: int, lengths: Sequence[int]) -> Iterator[Call]:
    """Calls of these lengths, one after the other, in which all streams advance together."""
    start = 0
    for length in lengths:
        at, none = np.full(batch_size, start), np.zeros(batch_size, np.int64)
        yield Call(length, at, np.full(batch_size, length), none, True)
        start += length


class CallCosts:
    """Seconds that calls of each length take, about, and the cheapest way to run n tokens."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        """Take what a call of each length costs."""
        self.seconds, self.longest = dict(seconds), max(seconds)
        self.first = functools.lru_cache(4096)(self._first)

    def _first(self, n: int, room: int) -> int:
        """Length of the first call of the cheapest way to run n tokens; 0 where there is none.

        Args:
            n: tokens.
            room: tokens from the first on that calls may take, padding included.
        """
        best: list[tuple[float, int]] = [(0.0, 0)]
        for left in range(1, n + 1):
            fits = [c for c in self.seconds if c <= left + room - n]
            ways = [(self.seconds[c] + best[max(0, left - c)][0], c) for c in fits]
            # Of ways that cost the same the longest call first: what is left may yet be run at another price.
            best.append(min(ways, key=lambda way: (round(way[0], 9), -way[1]), default=(math.inf, 0)))
        return best[n][1] if best[n][0] < math.inf else 0


def ring_calls(ring: Ring, costs: CallCosts, counts: np.ndarray, cuts: Cuts, last_only: bool) -> Iterator[Call]:
    """Calls that run `counts` [B] tokens of each stream; the ring must be advanced by each before the next is asked.

    Streams go on independently of each other: one whose ring ends inside a call, or whose segment does, reads the
    rest in the next.

    Args:
        ring: where the streams stand.
        costs: of the calls that can be run.
        counts: tokens of each stream, 0 for one that reads nothing.
        cuts: where segments end.
        last_only: only the answer for each stream's last token is wanted: it is a call's last row, without padding.
    """
    done, none = np.zeros_like(counts), np.zeros_like(counts)
    if 1 in costs.seconds and (counts == 1).all():
        yield Call(1, done, counts, none, True)
        return
    while most := int((left := counts - done).max()):
        offsets = none if cuts.free else np.where(left > 0, done % cuts.segment_len, 0)
        wanted = np.minimum(left, ring.rows - ring.slots)
        if not cuts.free:
            wanted = np.minimum(wanted, cuts.segment_len - offsets)
        together = most in costs.seconds and bool((wanted == most).all())
        if last_only and not together:  # the last tokens of all streams are read in a call of their own
            wanted = np.minimum(wanted, np.maximum(left - 1, 0)) if most > 1 else wanted
        room = cuts.reach - int(offsets.max())  # also for streams that read less: what they write counts as well
        n = min(int(wanted.max()), MOST_PLANNED * costs.longest if cuts.free else room)
        if cuts.free:  # each call is a segment of its own
            room = n + costs.longest
        exact = last_only and (together or most == 1)
        length = (n if n in costs.seconds else 0) if exact else costs.first(n, room)
        if not length:
            raise InputError(f"no call of this bundle ends after {n} tokens: export again with --segment-lens 1,...")
        valid = np.minimum(wanted, length)
        yield Call(length, done.copy(), valid, offsets, bool((valid == length).all() and (done == done[0]).all()))
        done += valid


class Cuts(NamedTuple):
    """Where segments end.

    Attributes:
        segment_len: tokens per segment.
        free: whether they may end anywhere, as under `same_length`.
        reach: tokens from a segment's start to the end of a call in it, padding included, at most.
    """

    segment_len: int
    free: bool
    reach: int


def call_costs(info: ModelInfo, batch_size: int, rates: Rates = ON_CPU) -> CallCosts:
    """About what calls of a model's lengths cost on a machine, by `txl_export.cost`."""
    lengths = {n for g in info.segments for n in (*range(g.lo, g.hi, max(1, (g.hi - g.lo) // 64)), g.hi)}
    seconds = {}
    for n in sorted(lengths):
        cost = call_cost(info.config, info.mem_len, n, batch_size, info.heads[0])
        seconds[n] = rates.call + cost.bytes_read / rates.read + cost.total_flops / rates.flops
    return CallCosts(seconds)
