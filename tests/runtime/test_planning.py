"""Segment lengths as they are written, and which calls run a feed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bundles import one_line
from txl_export.calls import cut, plan_segment
from txl_export.errors import InputError
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
