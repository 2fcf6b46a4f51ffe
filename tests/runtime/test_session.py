"""`feed`: any number of tokens, whose answers are the caller's."""

import numpy as np
import pytest

from tests.bundles import Exported, one_line
from tests.helpers import random_ids
from txl_export.errors import InputError
from txl_export.runtime import Engine

HEADS = ("log_probs", "target")


@pytest.fixture
def stepping(exported) -> Exported:
    return exported("stepping", "kv", (1, 8), HEADS)


@pytest.fixture
def sliding(exported) -> Exported:
    return exported("sliding", "kv", (1, 8))


def test_any_number_of_tokens(stepping):
    """Without same_length the cut is part of what is computed: every 8 tokens, and what is left."""
    ours, theirs = stepping.engine.session(2), stepping.judge.session(2)
    assert stepping.engine.info.segment_len == 8
    for n in range(1, 21):
        ids = random_ids(stepping.config, 2, n, seed=n)
        found = ours.feed(ids)
        assert found.shape == (2, n, 29)
        np.testing.assert_allclose(found, theirs.feed(ids, segment_len=8), atol=1e-4, rtol=0)


def test_the_cut_matters_without_same_length(stepping):
    """Else the test above would prove nothing."""
    ids = random_ids(stepping.config, 1, 40)
    by_8 = stepping.engine.session(1).feed(ids, segment_len=8)
    by_5 = stepping.engine.session(1).feed(ids, segment_len=5)
    assert np.abs(by_8 - by_5).max() > 1e-2
    np.testing.assert_allclose(by_5, stepping.judge.session(1).feed(ids, segment_len=5), atol=1e-4)


def test_a_feed_is_its_segments(stepping):
    ids = random_ids(stepping.config, 3, 20)
    at_once = stepping.engine.session(3).feed(ids)
    session = stepping.engine.session(3)
    parts = [session.feed(part) for part in (ids[:, :8], ids[:, 8:16], ids[:, 16:])]
    np.testing.assert_array_equal(at_once, np.concatenate(parts, axis=1))


def test_segment_len_of_the_engine_and_of_the_feed(stepping):
    ids = random_ids(stepping.config, 1, 12)
    by_4 = Engine.load(stepping.path, segment_len=4, threads=1)
    assert by_4.info.segment_len == 4
    np.testing.assert_array_equal(by_4.session(1).feed(ids), stepping.engine.session(1).feed(ids, segment_len=4))
    for wrong in (0, 9):
        with pytest.raises(InputError) as e:
            Engine.load(stepping.path, segment_len=wrong)
        assert "1 to 8" in one_line(e.value)


def test_answers_are_never_changed_by_later_calls(stepping):
    session = stepping.engine.session(2)
    kept = [session.feed(random_ids(stepping.config, 2, n, seed=n)) for n in (8, 3, 1, 20)]
    copies = [a.copy() for a in kept]
    for i in range(6):
        session.feed(random_ids(stepping.config, 2, 8, seed=i))
        session.feed(random_ids(stepping.config, 2, 1, seed=i))
    session.reset()
    for a, b in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(a, b)
    kept[0][:] = 7  # nor does writing to one reach the session or another answer
    np.testing.assert_array_equal(kept[1], copies[1])


def test_tokens_are_not_kept(stepping):
    """The caller may reuse the array of tokens."""
    a, b = stepping.engine.session(2), stepping.engine.session(2)
    ids = random_ids(stepping.config, 2, 8)
    reused = ids.copy()
    a.feed(ids), b.feed(reused)
    reused[:] = 0
    later = random_ids(stepping.config, 2, 8, seed=1)
    np.testing.assert_array_equal(a.feed(later), b.feed(later))


@pytest.mark.parametrize("batch_size, n", [(1, 8), (2, 20), (1, 20), (3, 1)])
def test_out(stepping, batch_size, n):
    ids = random_ids(stepping.config, batch_size, n)
    expected = stepping.engine.session(batch_size).feed(ids)
    out = np.full(expected.shape, np.nan, np.float32)
    assert stepping.engine.session(batch_size).feed(ids, out=out) is out
    np.testing.assert_array_equal(out, expected)
    strided = np.full((batch_size, n, 2, 29), np.nan, np.float32)
    stepping.engine.session(batch_size).feed(ids, out=strided[:, :, 1])
    np.testing.assert_array_equal(strided[:, :, 1], expected)
    assert np.isnan(strided[:, :, 0]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: ids.tolist(),
        lambda ids: ids.astype(np.uint8),
        lambda ids: ids.astype(np.int32),
        lambda ids: ids.astype(">i8"),
        lambda ids: np.asfortranarray(ids),
        lambda ids: np.repeat(ids, 2, axis=1)[:, ::2],
        lambda ids: tuple(map(tuple, ids.tolist())),
    ],
)
def test_all_integers_do(stepping, make):
    ids = random_ids(stepping.config, 2, 8)
    np.testing.assert_array_equal(stepping.engine.session(2).feed(make(ids)), stepping.engine.session(2).feed(ids))


def test_targets_over_several_calls(stepping):
    ids, targets = random_ids(stepping.config, 2, 20), random_ids(stepping.config, 2, 20, seed=1)
    asked = stepping.engine.session(2).feed(ids, head="target", targets=targets)
    full = stepping.engine.session(2).feed(ids)
    assert asked.shape == (2, 20)
    np.testing.assert_allclose(asked, np.take_along_axis(full, targets[..., None], -1)[..., 0], atol=1e-5)


@pytest.mark.parametrize("n", [1, 5, 8, 19])
def test_same_length_runs_what_no_graph_has(sliding, n):
    """Graphs of 1 and 8 tokens: 5 are five calls, and the numbers those of one segment."""
    ours, theirs = sliding.engine.session(2), sliding.judge.session(2)
    for i in range(4):
        ids = random_ids(sliding.config, 2, n, seed=i)
        np.testing.assert_allclose(ours.feed(ids), theirs.feed(ids, segment_len=64), atol=1e-4, rtol=0)


def test_warm_up_leaves_sessions_alone(stepping):
    engine = Engine.load(stepping.path, threads=1)
    session = engine.session(1)
    session.feed([[1, 2, 3]])
    engine.warm_up()
    fresh = stepping.engine.session(1)
    fresh.feed([[1, 2, 3]])
    np.testing.assert_array_equal(session.feed([[4]]), fresh.feed([[4]]))


@pytest.mark.parametrize("batch_size", [0, -1, 4097, 1.5, "2", True, None])
def test_batch_size_beyond_the_bundle(stepping, batch_size):
    with pytest.raises(InputError) as e:
        stepping.engine.session(batch_size)
    assert "1 to 4096" in one_line(e.value)


def test_batch_size_may_be_numpys(stepping):
    assert stepping.engine.session(np.int64(2)).batch_size == 2


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"mem_len": 13}, "13.*holds 12.*export again"),
        ({"mem_len": 6}, "6.*holds 12"),
        ({"backend": "tensorflow"}, "onnxruntime, typed"),
        ({"backend": "eager"}, "checkpoint"),
        ({"threads": 0}, "threads is 0"),
        ({"packed": "yes"}, "packed is 'yes'"),
    ],
)
def test_engine_refuses(stepping, arguments, says):
    with pytest.raises(InputError, match=says) as e:
        Engine.load(stepping.path, **arguments)
    one_line(e.value)


def test_eager_refuses():
    from tests.bundles import checkpoint_of

    for arguments in ({"mem_len": -1}, {"segment_len": -2}, {"backend": "onnxruntime"}):
        with pytest.raises(InputError) as e:
            Engine.load(checkpoint_of("stepping"), **{"backend": "eager", **arguments})
        one_line(e.value)


def test_sessions_of_one_engine_do_not_meet(stepping):
    a, b = stepping.engine.session(1), stepping.engine.session(1)
    a.feed([[1, 2, 3, 4]])
    np.testing.assert_array_equal(b.feed([[5]]), stepping.engine.session(1).feed([[5]]))


def test_out_may_lie_over_the_tokens(stepping):
    """The answer of the first call must not become the tokens of the second."""
    ids = random_ids(stepping.config, 1, 20)
    expected = stepping.engine.session(1).feed(ids)
    memory = np.zeros(20 * 29, np.float32)
    shared = memory.view(np.int64)[-20:].reshape(1, 20)
    shared[...] = ids
    found = stepping.engine.session(1).feed(shared, out=memory.reshape(1, 20, 29))
    np.testing.assert_array_equal(found, expected)


def test_out_that_repeats_its_numbers_is_refused(stepping):
    out = np.lib.stride_tricks.as_strided(np.zeros((1, 3, 29), np.float32), (2, 3, 29), (0, 116, 4))
    with pytest.raises(InputError) as e:
        stepping.engine.session(2).feed(random_ids(stepping.config, 2, 3), out=out)
    assert "repeats" in one_line(e.value)


class Raising:
    """An array of another library that refuses."""

    def __array__(self, *args, **more):
        raise RuntimeError("it requires grad")

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("not yet")


def test_arrays_that_refuse_are_refused_in_a_line(stepping):
    session = stepping.engine.session(1)
    with pytest.raises(InputError, match="ids cannot be read"):
        session.feed(Raising())
    assert session.positions.tolist() == [0]


@pytest.mark.parametrize("wrong", [{"backend": []}, {"mem_len": "3"}, {"segment_len": [1]}, {"mem_len": True}])
def test_values_of_other_types(stepping, wrong):
    with pytest.raises(InputError) as e:
        Engine.load(stepping.path, **wrong)
    assert next(iter(wrong)) in one_line(e.value)
