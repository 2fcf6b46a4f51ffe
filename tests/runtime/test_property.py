"""Random sequences of feeds, resets, forks, reorderings and saves: onnxruntime equals eager at every step."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import random_ids

B = 3
STEPS = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 20)),
    st.tuples(st.just("feed"), st.sampled_from([1, 8])),
    st.tuples(st.just("reset"), st.sets(st.integers(0, B - 1))),
    st.tuples(st.just("reorder"), st.lists(st.integers(0, B - 1), min_size=B, max_size=B)),
    st.tuples(st.sampled_from(["fork", "restore", "fail"]), st.none()),
)


@pytest.mark.parametrize("name, layout, lens", [("stepping", "kv", (1, 8)), ("sliding", "hidden", ("1-8",))])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=3, max_size=12), seed=st.integers(0, 1000))
def test_onnxruntime_equals_eager(exported, tmp_path, name, layout, lens, steps, seed):
    bundle = exported(name, layout, lens)
    ours, theirs = bundle.engine.session(B), bundle.judge.session(B)
    rng = np.random.default_rng(seed)
    for what, how in [*steps, ("feed", 5)]:
        if what == "feed":
            ids = random_ids(bundle.config, B, how, seed=int(rng.integers(1 << 30)))
            np.testing.assert_allclose(ours.feed(ids), theirs.feed(ids), atol=1e-4, rtol=0)
        elif what == "reset":
            ours.reset(how), theirs.reset(how)
        elif what == "reorder":
            ours.reorder(how), theirs.reorder(how)
        elif what == "fork":
            kept = ours
            ours, theirs = ours.fork(), theirs.fork()
            kept.feed([[0]] * B)
        elif what == "restore":
            pair = []
            for session, engine in ((ours, bundle.engine), (theirs, bundle.judge)):
                session.save(tmp_path / "s")
                pair.append(engine.restore(tmp_path / "s"))
            ours, theirs = pair
        else:
            with pytest.raises(Exception, match="expected tokens"):
                ours.feed([[-1]] * B)
        assert ours.positions.tolist() == theirs.positions.tolist()


@pytest.mark.parametrize("layout, lens", [("kv", (1, 8)), ("hidden", ("1-8",))])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    feeds=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=8),
    seed=st.integers(0, 3),
)
def test_with_same_length_any_cut_equals_any_other(exported, layout, lens, feeds, seed):
    """Token by token equals segment by segment."""
    bundle = exported("sliding", layout, lens)
    total = sum(n for n, _ in feeds)
    ids = random_ids(bundle.config, 2, total, seed=seed)
    one_by_one = bundle.engine.session(2).feed(ids, segment_len=1)
    session, start, found = bundle.engine.session(2), 0, []
    for n, segment_len in feeds:
        found.append(session.feed(ids[:, start : start + n], segment_len=segment_len))
        start += n
    np.testing.assert_allclose(np.concatenate(found, axis=1), one_by_one, atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", ["same_length", "wider_window"])
def test_windows_of_both_sizes_are_free_to_cut(exported, window):
    bundle = exported(window)
    ids = random_ids(bundle.config, 1, 150)
    whole = bundle.engine.session(1).feed(ids, segment_len=64)
    for segment_len in (1, 7, 25):
        np.testing.assert_allclose(
            bundle.engine.session(1).feed(ids, segment_len=segment_len), whole, atol=1e-4, rtol=0
        )
