"""Segment lengths as they are written, and which calls run a feed."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundles import one_line
from txl_export.calls import CallCosts, Cuts, cut, plan_segment, ring_calls
from txl_export.errors import InputError
from txl_export.ring import Ring
from txl_export.segments import SegmentRange, covering, parse_segments


@pytest.mark.parametrize(
    "written, lo, hi", [(64, 64, 64), ("64", 64, 64), (" 1 - 64 ", 1, 64), ("1-1", 1, 1), ("7-7", 7, 7)]
)
def test_parse(written, lo, hi):
    found = SegmentRange.parse(written)
    assert (found.lo, found.hi, found.fixed) == (lo, hi, lo == hi)
    assert SegmentRange.parse(str(found)) == found


@pytest.mark.parametrize("written", [0, -1, "0-4", "8-1", "", "a", "1-2-3", "-4", "4-", 1.5, None, "1,64"])
def test_parse_refuses(written):
    with pytest.raises(InputError) as e:
        SegmentRange.parse(written)
    assert "1-64" in one_line(e.value)


def test_contains_both_ends():
    segment = SegmentRange(2, 4)
    assert [n in segment for n in range(1, 6)] == [False, True, True, True, False]


def test_parse_segments_drops_repeats_and_keeps_order():
    assert list(map(str, parse_segments([64, "1", "64", 1, "1-8"]))) == ["64", "1", "1-8"]
    with pytest.raises(InputError, match="at least one"):
        parse_segments([])


def ranges(*values):
    return parse_segments(values)


@pytest.mark.parametrize(
    "asked, free, expected",
    [
        ((1, 64), True, "1 64"),  # pieces of one token do
        ((1, 64), False, "1 64 1-64"),  # lengths 2 to 63 would not run
        ((64,), True, "64 1-64"),  # a rest has nothing to run on
        (("1-64",), False, "1-64"),
        ((1, "2-8"), False, "1 2-8"),
        ((1, 2, 3), False, "1 2 3"),
        ((1,), False, "1"),
        (("2-8",), True, "2-8 1-8"),
    ],
)
def test_covering(asked, free, expected):
    assert " ".join(map(str, covering(ranges(*asked), free))) == expected


@pytest.mark.parametrize(
    "n, segment_len, expected", [(1, 8, [1]), (8, 8, [8]), (9, 8, [8, 1]), (20, 8, [8, 8, 4]), (3, 1, [1, 1, 1])]
)
def test_cut(n, segment_len, expected):
    assert cut(n, segment_len) == expected


def test_a_segment_is_one_call_where_a_graph_takes_it():
    assert plan_segment(8, ranges(1, 8), cut_is_free=False) == [8]
    assert plan_segment(5, ranges(1, 8, "1-8"), cut_is_free=False) == [5]


def test_free_cuts_take_the_longest_graphs():
    assert plan_segment(19, ranges(1, 8), cut_is_free=True) == [8, 8, 1, 1, 1]
    assert plan_segment(7, ranges(1, "2-5"), cut_is_free=True) == [5, 2]


def test_no_graph_for_a_segment():
    with pytest.raises(InputError) as e:
        plan_segment(9, ranges(1, 8, "1-8"), cut_is_free=False)
    assert "9 tokens" in one_line(e.value) and "segment_len=8" in str(e.value) and "1-9" in str(e.value)
    with pytest.raises(InputError) as e:
        plan_segment(9, ranges(8), cut_is_free=True)
    assert "--segment-lens 1" in one_line(e.value)


@given(
    asked=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=3),
    free=st.booleans(),
    data=st.data(),
)
def test_what_covering_gives_runs_every_length(asked, free, data):
    graphs = covering(parse_segments(f"{lo}-{lo + more}" for lo, more in asked), free)
    longest = max(g.hi for g in graphs)
    n = data.draw(st.integers(1, longest))
    calls = plan_segment(n, graphs, free)
    assert sum(calls) == n and all(any(c in g for g in graphs) for c in calls)
    assert free or len(calls) == 1


# Calls of layout `ring`


def run(ring, costs, counts, cuts, last_only=False):
    """The calls of a feed, the ring advanced by each; what holds for all of them is asserted."""
    counts, done, calls = np.array(counts), np.zeros(len(counts), int), []
    ends = ring.positions + counts
    for call in ring_calls(ring, costs, counts, cuts, last_only):
        assert call.length in costs.seconds and (call.valid <= call.length).all() and call.valid.any()
        assert (call.starts == done).all() and (call.valid <= counts - done).all()  # each token once, in order
        assert (ring.slots + call.valid <= ring.rows).all()  # no token behind the ring's end
        reading = counts > done
        assert (call.offsets[reading] == (0 if cuts.free else done[reading] % cuts.segment_len)).all()
        assert (call.offsets + call.length <= cuts.reach).all()
        assert cuts.free or (call.offsets + call.valid <= cuts.segment_len).all()
        assert ring.holds(ring.visible_from(call.offsets), call.length)
        together = len(set(call.starts)) == 1 and (call.valid == call.length).all()
        assert call.whole == together
        done += call.valid
        answered = (call.valid > 0) & (done == counts)
        assert not last_only or (call.valid[answered] == call.length).all()  # its answer is the call's last row
        ring.advance(call.valid, call.length)
        calls.append(call)
    assert (done == counts).all() and (ring.positions == ends).all()
    return calls


def cheapest(costs, n, room):
    """What n tokens cost at least, of all ways to run them in calls that end within `room` tokens."""

    @functools.cache
    def rest(done):
        if done >= n:
            return 0
        return min((s + rest(done + c) for c, s in costs.seconds.items() if done + c <= room), default=math.inf)

    return rest(0)


COSTS = st.dictionaries(st.integers(2, 9), st.integers(1, 30), max_size=3).flatmap(
    lambda some: st.integers(1, 10).map(lambda one: CallCosts({1: one} | some))
)


@given(costs=COSTS, data=st.data())
def test_the_calls_of_a_feed_cost_least(costs, data):
    """Whatever calls cost: padding is taken where it costs less, and only there."""
    n = data.draw(st.integers(1, 4 * costs.longest))
    calls = run(Ring(1, 8, 10_000, 0), costs, [n], Cuts(5, True, costs.longest))
    assert sum(costs.seconds[c.length] for c in calls) == cheapest(costs, n, math.inf)


@given(costs=COSTS, data=st.data())
def test_the_calls_of_a_segment_cost_least_within_reach(costs, data):
    reach = costs.longest + data.draw(st.integers(0, 12))
    n = data.draw(st.integers(1, reach))
    calls = run(Ring(1, 8, 10_000, 0), costs, [n], Cuts(n, False, reach))
    assert sum(costs.seconds[c.length] for c in calls) == cheapest(costs, n, reach)


@pytest.mark.parametrize(
    "n, reach, expected",
    [
        (3, 8, [4]),  # a padded call of 4 costs less than 3 of 1
        (5, 8, [8]),
        (6, 6, [4, 1, 1]),  # 8 would reach further than the memory holds
        (7, 7, [4, 1, 1, 1]),
        (12, 100, [8, 4]),
        (13, 100, [8, 8]),
        (13, 15, [8, 4, 1]),
    ],
)
def test_padding(n, reach, expected):
    costs = CallCosts({1: 10, 4: 19, 8: 28})
    calls = run(Ring(1, 8, 10_000, 0), costs, [n], Cuts(n, False, reach))
    assert sorted((c.length for c in calls), reverse=True) == expected


@settings(max_examples=150)
@given(
    costs=COSTS,
    memory=st.tuples(st.integers(0, 6), st.integers(0, 3)),
    free=st.booleans(),
    last_only=st.booleans(),
    feeds=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any), min_size=1, max_size=6),
    data=st.data(),
)
def test_any_lengths_of_streams_anywhere_are_run(costs, memory, free, last_only, feeds, data):
    """Streams that stand at different places of a small ring, or read nothing: every token once, at its place."""
    reach = costs.longest + data.draw(st.integers(0, 5))
    segment_len = data.draw(st.integers(1, reach))
    ring = Ring(3, memory[0], sum(memory) + reach, 0)
    ring.positions[:] = ring.written[:] = data.draw(st.lists(st.integers(0, 40), min_size=3, max_size=3))
    for counts in feeds:
        run(ring, costs, counts, Cuts(segment_len, free, reach), last_only)


def test_streams_are_cut_where_their_rings_end():
    costs, ring = CallCosts({1: 1.0, 8: 2.0}), Ring(2, 2, 10, 0)
    ring.positions[:] = [0, 7]
    calls = run(ring, costs, [6, 6], Cuts(8, True, 8))
    assert [(c.length, c.valid.tolist()) for c in calls] == [(8, [6, 3]), (8, [0, 3])]


@pytest.mark.parametrize("free, expected", [(False, [3, 3, 2]), (True, [8])])
def test_segments_end_where_they_should(free, expected):
    calls = run(Ring(1, 4, 100, 0), CallCosts({1: 1.0, 8: 1.0}), [8], Cuts(3, free, 8))
    assert [int(c.valid[0]) for c in calls] == expected


def test_a_last_answer_is_never_padding():
    costs = CallCosts({1: 10.0, 8: 11.0})
    for counts, expected in [([8, 8], [8]), ([7, 7], [8, 1]), ([8, 5], [8, 1]), ([1, 0], [1])]:
        ring = Ring(2, 2, 10_000, 0)
        assert [c.length for c in run(ring, costs, counts, Cuts(8, False, 8), last_only=True)] == expected


def test_one_token_of_every_stream_is_one_call():
    ring = Ring(3, 2, 7, 0)
    (call,) = run(ring, CallCosts({1: 9.0, 4: 1.0}), [1, 1, 1], Cuts(4, False, 5))
    assert call.length == 1 and call.whole


def test_no_call_ends_in_time():
    """Only with lengths that were exported without 1."""
    ring = Ring(1, 4, 12, 0)
    ring.advance(np.array([8]), 8)
    with pytest.raises(InputError) as e:
        run(ring, CallCosts({8: 1.0}), [8], Cuts(8, False, 8))
    assert "--segment-lens 1" in one_line(e.value)
