"""Streams of one session: started at different times, reset, copied, reordered, saved."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.bundles import Exported, checkpoint_of, one_line, same_arrays
from tests.helpers import random_ids
from txl_export.errors import InputError
from txl_export.runtime import Engine

BUNDLES = [("stepping", "kv", (1, 8)), ("sliding", "kv", (1, 8)), ("sliding", "hidden", ("1-8",))]


@pytest.fixture(params=BUNDLES, ids=lambda p: "-".join(p[:2]))
def bundle(exported, request) -> Exported:
    return exported(*request.param)


@pytest.fixture(params=["onnxruntime", "eager"])
def engine(exported, request) -> Engine:
    found = exported("stepping", "kv", (1, 8))
    return found.engine if request.param == "onnxruntime" else found.judge


def fed(session, *lengths, seed=0):
    for i, n in enumerate(lengths):
        session.feed(random_ids(session.info.config, session.batch_size, n, seed=seed + i))
    return session


def state(session):
    return session._streams.state()


def test_streams_started_at_different_times(bundle):
    """Each equals a run of its own, whatever the others are and how full their memory is."""
    together = bundle.engine.session(3)
    alone = [bundle.judge.session(1) for _ in range(3)]
    rng = np.random.default_rng(0)
    for i in range(60):
        if i in (2, 3, 11, 40, 41):
            stream = i % 3
            together.reset([stream])
            alone[stream] = bundle.judge.session(1)
        ids = random_ids(bundle.config, 3, int(rng.choice([1, 2, 8, 11])), seed=i)
        found = together.feed(ids)
        for s in range(3):
            np.testing.assert_allclose(found[s], alone[s].feed(ids[s : s + 1])[0], atol=1e-4, rtol=0)
        assert together.positions.tolist() == [int(a.positions[0]) for a in alone]


def test_reset_leaves_the_others_bit_for_bit(engine):
    a, b = (fed(engine.session(3), 8, 5, 8) for _ in range(2))
    before = state(a)
    a.reset(streams=[1])
    assert same_arrays(state(a), before, rows=[0, 2])
    assert a.positions.tolist() == [21, 0, 21]
    for i, n in enumerate([1, 8, 8, 3]):
        ids = random_ids(a.info.config, 3, n, seed=50 + i)
        x, y = a.feed(ids), b.feed(ids)
        np.testing.assert_array_equal(x[[0, 2]], y[[0, 2]])
        assert not np.array_equal(x[1], y[1]) or i > 1  # after a memory's length both have forgotten


@pytest.mark.parametrize("odd_feeds", [1, 2])
def test_reset_stream_is_as_new(bundle, odd_feeds):
    """Whichever buffer is the present one, and again at the next reset: it persists."""
    session = fed(bundle.engine.session(2), *[8] * odd_feeds)
    for _ in range(2):
        session.reset([0])
        fresh = bundle.engine.session(2)
        for i, n in enumerate([3, 8, 8, 1]):
            ids = random_ids(bundle.config, 2, n, seed=i)
            np.testing.assert_array_equal(session.feed(ids)[0], fresh.feed(ids)[0])


def test_reset_of_all(engine):
    a, fresh = fed(engine.session(2), 8, 3), engine.session(2)
    a.reset()
    assert a.positions.tolist() == [0, 0]
    ids = random_ids(a.info.config, 2, 20)
    np.testing.assert_allclose(a.feed(ids), fresh.feed(ids), atol=1e-5)


def test_reset_of_none_and_repeats(engine):
    a = fed(engine.session(3), 8)
    before = state(a)
    a.reset([])
    assert same_arrays(state(a), before)
    a.reset(np.array([2, 2, 0]))
    assert a.positions.tolist() == [0, 8, 0]


@pytest.mark.parametrize("streams", [[3], [-1], [0, 7], [1.0], ["a"], [True], 1])
def test_reset_of_streams_that_do_not_exist(engine, streams):
    a = fed(engine.session(3), 8)
    before = state(a)
    with pytest.raises(InputError) as e:
        a.reset(streams)
    one_line(e.value)
    assert same_arrays(state(a), before)


def test_fork_goes_on_alone(bundle):
    session = fed(bundle.engine.session(2), 8, 5)
    fork = session.fork()
    assert same_arrays(state(fork), state(session))
    ids, others = (random_ids(bundle.config, 2, 11, seed=s) for s in (1, 2))
    expected = fed(bundle.engine.session(2), 8, 5).feed(ids)
    fork.feed(others)
    fork.reset([0])
    np.testing.assert_array_equal(session.feed(ids), expected)
    again = session.fork()
    session.reset()
    assert again.positions.tolist() == [24, 24] and session.positions.tolist() == [0, 0]


def test_reorder(engine):
    a, b = (fed(engine.session(3), 8, 5) for _ in range(2))
    a.reset([2]), b.reset([2])
    a.feed([[1], [2], [3]]), b.feed([[1], [2], [3]])
    a.reorder([2, 0, 0])
    assert a.positions.tolist() == [1, 14, 14]
    assert all(np.array_equal(x, state(b)[name][[2, 0, 0]]) for name, x in state(a).items())
    ids = random_ids(a.info.config, 1, 8)
    found, expected = a.feed(np.repeat(ids, 3, 0)), b.feed(np.repeat(ids, 3, 0))
    np.testing.assert_allclose(found, expected[[2, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("streams", [[0, 1], [0, 1, 3], [0, 1, 2, 0], [], [0, 1, -1], 0])
def test_reorder_refuses(engine, streams):
    a = fed(engine.session(3), 8)
    before = state(a)
    with pytest.raises(InputError) as e:
        a.reorder(streams)
    one_line(e.value)
    assert same_arrays(state(a), before)


def test_rewind_says_what_to_do(engine):
    session = fed(engine.session(1), 8)
    with pytest.raises(InputError, match="fork") as e:
        session.rewind(2)
    one_line(e.value)
    assert session.positions.tolist() == [8]


def test_memory_is_of_the_asked_stream_and_a_copy(bundle):
    session = bundle.engine.session(2)
    session.feed(random_ids(bundle.config, 2, 5))
    session.reset([1])
    session.feed(random_ids(bundle.config, 2, 3, seed=1))
    start = bundle.engine.info.start
    axis = 0 if bundle.engine.info.layout == "hidden" else 1
    for stream, filled in ((0, 8), (1, 3)):
        kept = session.memory_tensors(stream)
        assert all(a.shape[axis] == min(12, start + filled) for layer in kept for a in layer.values())
    before = state(session)
    for layer in session.memory_tensors(0):
        for a in layer.values():
            a[:] = 9
    assert same_arrays(state(session), before)
    with pytest.raises(InputError):
        session.memory_tensors(2)


def test_kv_has_no_hidden_states(exported):
    session = exported("stepping", "kv", (1, 8)).engine.session(1)
    with pytest.raises(InputError, match="memory_tensors"):
        session.memory(0)


# Saved sessions


def test_save_and_restore(engine, tmp_path):
    session = fed(engine.session(2), 8, 5)
    session.reset([1])
    session.feed([[1, 2], [3, 4]])
    session.save(tmp_path / "s.txl")
    restored = engine.restore(tmp_path / "s.txl")
    assert restored.batch_size == 2 and restored.positions.tolist() == [15, 2]
    for i in range(3):
        ids = random_ids(session.info.config, 2, 8, seed=i)
        np.testing.assert_array_equal(session.feed(ids), restored.feed(ids))
    assert [p.name for p in tmp_path.iterdir()] == ["s.txl"]


def test_save_is_a_moment(exported, tmp_path):
    """What is fed after saving is not in the file; saving twice replaces."""
    bundle = exported("stepping", "kv", (1, 8))
    session = fed(bundle.engine.session(1), 8)
    session.save(tmp_path / "s")
    session.feed([[5]])
    assert bundle.engine.restore(tmp_path / "s").positions.tolist() == [8]
    session.save(tmp_path / "s")
    assert bundle.engine.restore(tmp_path / "s").positions.tolist() == [9]


def test_restore_in_a_fresh_process(bundle, tmp_path):
    session = fed(bundle.engine.session(2), 8, 5)
    session.save(tmp_path / "s")
    ids = random_ids(bundle.config, 2, 11)
    script = (
        "import sys, json, txl_export as txl; a = json.loads(sys.argv[1]);"
        "s = txl.Engine.load(a['bundle'], threads=1).restore(a['file']);"
        "print(s.positions.tolist(), s.feed(a['ids']).tobytes().hex())"
    )
    asked = {"bundle": str(bundle.path), "file": str(tmp_path / "s"), "ids": ids.tolist()}
    answer = subprocess.run(
        [sys.executable, "-c", script, json.dumps(asked)], capture_output=True, text=True, check=True
    )
    assert answer.stdout == f"[13, 13] {session.feed(ids).tobytes().hex()}\n"


def refused(engine, path):
    with pytest.raises(InputError) as e:
        engine.restore(path)
    text = one_line(e.value)
    assert str(path) in text
    return text


def test_restore_meets_only_its_own_model(exported, tmp_path):
    stepping, sliding = exported("stepping", "kv", (1, 8)), exported("sliding", "kv", (1, 8))
    fed(stepping.engine.session(1), 3).save(tmp_path / "a")
    assert "model" in refused(sliding.engine, tmp_path / "a")
    assert "layout" in refused(stepping.judge, tmp_path / "a")
    fed(stepping.judge.session(1), 3).save(tmp_path / "b")
    other_m = Engine.load(stepping.checkpoint, backend="eager", mem_len=7)
    assert "mem_len" in refused(other_m, tmp_path / "b")


def test_restore_refuses_another_dialect_of_the_same_weights(tmp_path):
    """A stream's position 3 means another memory where streams start at M."""
    import dataclasses

    from txl_export.config import Dialect

    checkpoint = checkpoint_of("stepping")
    zeros = dataclasses.replace(checkpoint, dialect=Dialect(initial_memory="zeros"))
    a, b = (Engine.load(c, backend="eager") for c in (checkpoint, zeros))
    fed(a.session(1), 3).save(tmp_path / "a")
    assert "model" in refused(b, tmp_path / "a")


def test_restore_refuses_what_is_no_session(engine, tmp_path):
    assert "does not exist" in refused(engine, tmp_path / "none")
    (tmp_path / "text").write_text("hello\nworld\n")
    refused(engine, tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    refused(engine, tmp_path / "empty")
    save_file({"a": np.zeros(1)}, tmp_path / "tensors")
    refused(engine, tmp_path / "tensors")
    fed(engine.session(1), 3).save(tmp_path / "s")
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-5])
    refused(engine, tmp_path / "cut")


def test_restore_refuses_a_damaged_session(engine, tmp_path):
    from safetensors import safe_open

    session = fed(engine.session(2), 8, 8)
    session.save(tmp_path / "s")
    with safe_open(tmp_path / "s", framework="numpy") as f:
        metadata = f.metadata()
    tensors = load_file(tmp_path / "s")
    name = next(n for n in tensors if tensors[n].dtype == np.float32)

    def damaged(changed):
        save_file({k: np.ascontiguousarray(v) for k, v in changed.items()}, tmp_path / "bad", metadata)
        refused(engine, tmp_path / "bad")

    damaged({k: v for k, v in tensors.items() if k != name})
    damaged(tensors | {name: tensors[name][:1]})
    damaged(tensors | {name: tensors[name].astype(np.float64)})
    damaged(tensors | {name: np.full_like(tensors[name], np.nan)})
    damaged(tensors | {name: tensors[name][..., :-1]})
    damaged(tensors | {"positions": tensors["positions"] - 1000})
    if engine.backend == "onnxruntime":
        damaged(tensors | {name: tensors[name][:, :1]})  # one head of two
        damaged(tensors | {name: tensors[name][:, :, :-1]})  # a row less than M
