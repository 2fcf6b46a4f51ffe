"""Sessions of layout `ring` against the judge, which runs every stream alone: whatever happens, the same numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.bundles import (
    RING_CUT,
    RING_LENS,
    RING_REWIND,
    ExportFixture,
    checkpoint_of,
    exported_ring,
    one_line,
    same_arrays,
    untraced,
)
from tests.helpers import random_ids
from txl_export import Engine, Session
from txl_export.calls import CallCosts
from txl_export.checkpoints import Checkpoint
from txl_export.errors import InputError
from txl_export.ring import Ring

B = 3
EXACT, HALF = 1e-4, 0.1  # what rounding to fp16 does to these models; a wrong key moves them by more than 1
HEADS = ("log_probs", "log_probs@last", "target", "target@last", "top_k")


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """An engine of layout `ring` and the checkpoint that judges it."""

    engine: Engine
    checkpoint: Checkpoint
    tolerance: float = EXACT

    @functools.cache  # noqa: B019 - models live as long as the tests
    def judge(self, mem_len: int | None) -> Engine:
        return Engine.load(self.checkpoint, backend="eager", mem_len=mem_len, segment_len=RING_CUT)

    def agree(self, found: np.ndarray, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found, expected, atol=self.tolerance, rtol=0)


@pytest.fixture(scope="module")
def model(exported: ExportFixture, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """model("stepping", ...): on backend `typed`, or "stepping on ort", "sliding in half on ort"."""

    @functools.cache
    def get(words: str) -> Model:
        name, *how = words.split(" ")
        tolerance, precision = (HALF, "fp16") if "half" in how else (EXACT, "fp32")
        if "ort" in how:
            bundle = exported_ring(exported, name, precision)
            return Model(bundle.engine, bundle.checkpoint, tolerance)
        made = untraced(name, tmp_path_factory.mktemp(name), HEADS, precision)
        return Model(Engine.load(made, backend="typed"), checkpoint_of(name), tolerance)

    return get


class Judge:
    """Each stream in a session of its own, with forks from before its segments to go back to."""

    def __init__(self, engine: Engine, batch_size: int = B) -> None:
        self.engine = engine
        self.streams = [engine.session(1) for _ in range(batch_size)]
        self.past: list[list[tuple[Session, np.ndarray]]] = [[] for _ in range(batch_size)]

    @property
    def positions(self) -> list[int]:
        return [int(s.positions[0]) for s in self.streams]

    def feed(self, ids: np.ndarray, counts: Iterable[int], segment_len: int = RING_CUT) -> list[np.ndarray]:
        return [self._feed(b, ids[b, :n], segment_len) for b, n in enumerate(counts)]

    def _feed(self, b: int, ids: np.ndarray, segment_len: int) -> np.ndarray:
        answers = [np.zeros((0, self.engine.info.config.vocab_size), np.float32)]
        for start in range(0, len(ids), segment_len):
            part = ids[start : start + segment_len]
            self.past[b].append((self.streams[b].fork(), part))
            answers.append(self.streams[b].feed(part[None])[0])
        return np.concatenate(answers)

    def rewind(self, n: int, streams: Iterable[int]) -> None:
        for b in streams:
            left = n
            while left:
                before, ids = self.past[b].pop()
                self.streams[b] = before.fork()  # streams that were reordered share their past
                kept, left = ids[: max(0, len(ids) - left)], max(0, left - len(ids))
                if len(kept):
                    self._feed(b, kept, RING_CUT)

    def reset(self, streams: Iterable[int]) -> None:
        for b in streams:
            self.streams[b], self.past[b] = self.engine.session(1), []

    def reorder(self, streams: list[int]) -> None:
        self.past = [list(self.past[b]) for b in streams]
        self.streams = [self.streams[b].fork() for b in streams]


def feed_both(model: Model, ours: Session, theirs: Judge, counts: list[int], seed: int) -> None:
    """Feed the same tokens; equal answers for all that count, NaN behind them."""
    ids = random_ids(ours.info.config, len(counts), max(counts), seed=seed)
    answers = ours.feed(ids, lengths=None if len(set(counts)) == 1 else counts)
    for b, expected in enumerate(theirs.feed(ids, counts)):
        model.agree(answers[b, : counts[b]], expected)
        assert np.isnan(answers[b, counts[b] :]).all()
    assert ours.positions.tolist() == theirs.positions


class Failing:
    """Stands in for what runs a call: fails the given time, before or after the call was run."""

    def __init__(self, real: Callable[..., None], at: int, after: bool) -> None:
        self.real, self.left, self.after = real, at, after

    def __call__(self, *args: object) -> None:
        self.left -= 1
        if self.left or self.after:
            self.real(*args)
        if not self.left:
            raise RuntimeError("device lost")


def fail(session: Session, at: int, after: bool, segment_len: int = RING_CUT) -> None:
    """A feed that fails at a call, which leaves everything as it was."""
    before = session._streams.state()
    failing = Failing(session._streams.run, at, after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session._streams, "run", failing)
        with pytest.raises(RuntimeError, match="device lost"):
            session.feed(random_ids(session.info.config, session.batch_size, 40, seed=at), segment_len=segment_len)
    assert not failing.left and same_arrays(session._streams.state(), before)


STREAM = st.integers(0, B - 1)
STEPS = st.one_of(
    st.tuples(st.just("feed"), st.lists(st.integers(0, 20), min_size=B, max_size=B).filter(any)),
    st.tuples(st.just("feed"), st.integers(1, 9).map(lambda n: [n] * B)),
    st.tuples(st.just("rewind"), st.tuples(st.integers(0, 14), st.sets(STREAM, min_size=1))),
    st.tuples(st.just("reset"), st.sets(STREAM)),
    st.tuples(st.just("reorder"), st.lists(STREAM, min_size=B, max_size=B)),
    st.tuples(st.just("fail"), st.tuples(st.integers(1, 5), st.booleans())),
    st.tuples(st.sampled_from(["fork", "restore"]), st.none()),
)


def drive(model: Model, mem_len: int, steps: Iterable[tuple], path: Path, seed: int) -> None:  # type: ignore[type-arg]
    """Do the same to a session and to the judge; they agree at every step."""
    ours, theirs = model.engine.session(B, mem_len), Judge(model.judge(mem_len))
    farthest = np.zeros(B, int)
    for i, (what, how) in enumerate([*steps, ("feed", [9, 1, 4])]):
        if what == "feed":
            feed_both(model, ours, theirs, how, seed * 100 + i)
        elif what == "rewind":
            n, streams = how
            can = min(int(ours._streams.ring.rewindable()[b]) for b in streams)
            promised = min(max(0, ours.positions[b] - max(farthest[b] - RING_REWIND, 0)) for b in streams)
            assert can >= promised
            if n <= can:
                ours.rewind(n, streams), theirs.rewind(n, streams)
            else:
                with pytest.raises(InputError, match=f"{n} tokens cannot be taken back, {can} can"):
                    ours.rewind(n, streams)
        elif what == "reset":
            ours.reset(how), theirs.reset(how)
            farthest[list(how)] = 0
        elif what == "reorder":
            ours.reorder(how), theirs.reorder(how)
            farthest = farthest[how]
        elif what == "fail":
            fail(ours, *how)
        elif what == "fork":
            kept, ours = ours, ours.fork()
            kept.feed([[0] * 5] * B)
        else:
            ours.save(path / "s")
            ours = model.engine.restore(path / "s")
            assert ours.info.mem_len == mem_len
        assert ours.positions.tolist() == theirs.positions
        farthest = np.maximum(farthest, ours.positions)


RANDOM = settings(
    max_examples=8, phases=set(Phase) - {Phase.explain}, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DIALECTS = [
    ("stepping on ort", (12, 5, 0)),
    ("sliding in half on ort", (12, 5, 1)),
    ("stepping", (12, 2)),
    ("sliding", (12, 5, 1)),
    ("wider_window", (24, 3, 0)),
    ("short_memory", (5, 2, 0)),
    ("zeros_pre_lnorm", (24, 10)),
    ("no_memory", (0,)),
]


@pytest.mark.parametrize("name, mem_lens", DIALECTS)
@RANDOM
@given(steps=st.lists(STEPS, min_size=4, max_size=10), which=st.integers(0, 2), seed=st.integers(0, 1000))
def test_any_steps_equal_the_judge(model, tmp_path, name, mem_lens, steps, which, seed):
    drive(model(name), mem_lens[which % len(mem_lens)], steps, tmp_path, seed)


@pytest.mark.parametrize("name, mem_lens", DIALECTS[:2])
def test_a_long_drive(model, tmp_path, name, mem_lens):
    """The memory is written round several times, and the numbers do not drift apart."""
    rng = np.random.default_rng(1)
    steps: list[tuple] = []  # type: ignore[type-arg]
    for _ in range(60):
        steps += [("feed", rng.integers(0, 14, B).tolist()), ("feed", [int(rng.choice([1, 3, 8]))] * B)]
        steps += [("rewind", (int(rng.integers(0, 4)), {0, 2})), ("fail", (int(rng.integers(1, 5)), True))]
    steps = [s for s in steps if s[0] != "feed" or any(s[1])]
    drive(model(name), mem_lens[0], steps, tmp_path, seed=3)


# Calls


def lengths_run(session: Session) -> list[int]:
    """Lengths of the calls that a session runs from now on."""
    seen, real = [], session._streams.run

    def run(ids: np.ndarray, *rest: object) -> None:
        seen.append(ids.shape[1])
        real(ids, *rest)

    session._streams.run = run
    return seen


@pytest.mark.parametrize("name", ["stepping on ort", "sliding", "short_memory"])
@pytest.mark.parametrize("cheap", RING_LENS)
def test_whichever_calls_run_the_numbers_are_those_of_the_segment(model, name, cheap):
    """One token at a time, or as many as fit, or padded: 8 tokens that see the same memory."""
    found = model(name)
    usual, other = found.engine.session(B), found.engine.session(B)
    other._streams._costs = CallCosts({n: 1.0 if n == cheap else 50.0 for n in RING_LENS})
    lengths = lengths_run(other)
    for i, counts in enumerate([[20, 20, 20], [3, 3, 3], [7, 1, 0], [0, 18, 5], [16, 16, 16], [5, 6, 7]]):
        ids = random_ids(found.checkpoint.config, B, max(counts), seed=i)
        answers = [s.feed(ids, lengths=counts) for s in (usual, other)]
        np.testing.assert_allclose(*answers, atol=1e-5, rtol=0)
    assert lengths.count(cheap) > len(lengths) / 3
    for a, b in zip(usual.memory_tensors(1), other.memory_tensors(1), strict=True):
        for kind in a:
            np.testing.assert_allclose(a[kind], b[kind], atol=1e-5)


def test_segments_longer_than_any_call(tmp_path):
    """A segment of 13 tokens is several calls, which all see the memory before it."""
    bundle = untraced("stepping", tmp_path, segment_len=13)
    engine, judge = Engine.load(bundle, backend="typed"), Engine.load(checkpoint_of("stepping"), backend="eager")
    ours, theirs = engine.session(2), judge.session(2)
    assert engine.info.segment_len == 13
    for i, n in enumerate([13, 5, 26, 40, 1, 13]):
        ids = random_ids(engine.info.config, 2, n, seed=i)
        np.testing.assert_allclose(ours.feed(ids), theirs.feed(ids, segment_len=13), atol=EXACT, rtol=0)


def test_a_segment_longer_than_the_memory_holds(model):
    session = model("stepping").engine.session(1)
    ids = random_ids(session.info.config, 1, 20)
    with pytest.raises(InputError) as e:
        session.feed(ids, segment_len=20)
    assert "segments of 20 tokens" in one_line(e.value) and "segment_len=8" in str(e.value)
    assert session.feed(ids[:, :8], segment_len=20).shape == (1, 8, 29)  # what is fed ends before that
    sliding = model("sliding").engine.session(1)
    sliding.feed(ids, segment_len=20)  # where cuts are free nothing reaches further than a call


# The exact number of rows


def with_rows(model: Model, rewind: int, batch_size: int) -> Session:
    """A session whose rings have M + reach + `rewind` rows."""
    session, streams = model.engine.session(batch_size), type(model.engine.session(1)._streams)
    session._streams = streams(
        model.engine.model, dataclasses.replace(model.engine.model.sizes, rewind=rewind), batch_size
    )
    return session


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rings overwrite what is still needed."""
    monkeypatch.setattr(Ring, "holds", lambda *_: True)
    monkeypatch.setattr(Ring, "rewindable", lambda self: self.positions - self.start)


def largest_difference(model: Model, session: Session, rewind: int, idle: bool) -> float:
    """The largest difference from the judge over segments of full length, the last stream taken back at times."""
    theirs, worst = Judge(model.judge(None), session.batch_size), 0.0
    steps = [[8] * session.batch_size] * 6
    steps += [[*[8] * (session.batch_size - 1), 0], [4] * session.batch_size] * 3 if idle else steps
    for i, counts in enumerate(steps):
        if counts[-1] == 4:
            session.rewind(rewind, [session.batch_size - 1])
            theirs.rewind(rewind, [session.batch_size - 1])
        ids = random_ids(session.info.config, session.batch_size, max(counts), seed=i)
        found = session.feed(ids, lengths=counts)
        for answer, expected in zip(found, theirs.feed(ids, counts), strict=True):
            worst = max([worst, *np.abs(answer[: len(expected)] - expected).flat])
    return float(worst)


@pytest.mark.parametrize("name", ["stepping on ort", "stepping", "zeros_pre_lnorm"])
def test_segments_need_every_row(model, monkeypatch, name):
    found = model(name)
    assert largest_difference(found, with_rows(found, 0, 1), 0, False) < EXACT
    with pytest.raises(AssertionError, match="overwrite rows"):
        largest_difference(found, with_rows(found, -1, 1), 0, False)
    blind(monkeypatch)
    assert largest_difference(found, with_rows(found, -1, 1), 0, False) > 1e-2


def test_taking_back_needs_every_row(model, monkeypatch):
    """Three tokens behind a call that wrote eight rows ahead of a stream that read nothing."""
    found = model("stepping on ort")
    assert largest_difference(found, with_rows(found, 3, 2), 3, True) < EXACT
    with pytest.raises(InputError, match="3 tokens cannot be taken back, 2 can"):
        largest_difference(found, with_rows(found, 2, 2), 3, True)
    blind(monkeypatch)
    assert largest_difference(found, with_rows(found, 2, 2), 3, True) > 1e-2


# Taking back


def test_rows_that_a_failed_feed_wrote_over_are_not_offered(model):
    """What is promised can still be taken back after it, what was there by chance cannot."""
    session = model("stepping").engine.session(1)
    session.feed(random_ids(session.info.config, 1, 30))
    assert session._streams.ring.rewindable().min() > RING_REWIND
    fail(session, 4, True)
    assert session._streams.ring.rewindable().tolist() == [RING_REWIND]


def test_rows_that_are_written_over_twice_come_back(model):
    """Segments of 5 tokens in padded calls of 8: each writes again what the one before wrote ahead."""
    session = model("stepping").engine.session(1)
    session.feed(random_ids(session.info.config, 1, 30))
    session._streams._costs = CallCosts({1: 50.0, 8: 1.0})
    for at in range(1, 9):
        fail(session, at, True, segment_len=5)


@pytest.mark.parametrize("how", ["fork", "restore", "reorder"])
def test_a_copy_of_a_rewound_session_offers_what_is_there(model, tmp_path, how):
    found = model("stepping")
    session = found.engine.session(2)
    for _ in range(6):
        session.feed(random_ids(session.info.config, 2, 8))
    session.feed(random_ids(session.info.config, 2, 8), lengths=[8, 0])
    session.rewind(2, [1])
    before = session._streams.ring.rewindable().tolist()
    if how == "reorder":
        session.reorder([1, 0])
    else:
        session.save(tmp_path / "s")
        session = session.fork() if how == "fork" else found.engine.restore(tmp_path / "s")
    kept = session._streams.ring.rewindable().tolist()
    # A file has the rows that --rewind promises and no more; a copy has them all.
    assert kept == {"fork": before, "reorder": before[::-1], "restore": [3, 1]}[how]
    assert min(before) >= 1
    most = min(kept) + 1
    with pytest.raises(InputError) as e:
        session.rewind(most)
    told = f"{most} tokens cannot be taken back, {most - 1} can"
    assert told in one_line(e.value) and f"--rewind {most}" in str(e.value)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "1"])
def test_numbers_that_cannot_be_taken_back(model, wrong):
    session = model("stepping").engine.session(1)
    session.feed([[1, 2]])
    with pytest.raises(InputError) as e:
        session.rewind(wrong)
    assert "expected 0 or more tokens" in one_line(e.value)
    with pytest.raises(InputError):
        session.rewind(3)  # not before the start
    session.rewind(0), session.rewind(2)
    assert session.positions.tolist() == [0]


# Lengths and heads

COUNTS = [5, 0, 9]


def test_every_head_answers_each_stream_up_to_its_length(model):
    """What stands behind lengths may be anything, as padding is, and is answered by NaN."""
    found = model("stepping")
    base = found.engine.session(B)
    base.feed(random_ids(base.info.config, B, 40))
    ids, targets = (random_ids(base.info.config, B, 9, seed=s) for s in (1, 2))
    log_probs = base.fork().feed(ids, lengths=COUNTS)
    for b, n in enumerate(COUNTS):
        ids[b, n:], targets[b, n:] = -1, -100
    last = np.array([[log_probs[b, n - 1] if n else np.full(29, np.nan)] for b, n in enumerate(COUNTS)])
    rows = np.arange(B)[:, None], np.arange(9), np.maximum(targets, 0)
    np.testing.assert_allclose(base.fork().feed(ids, lengths=COUNTS), log_probs, atol=1e-6)
    np.testing.assert_allclose(base.fork().feed(ids, head="log_probs@last", lengths=COUNTS), last, atol=1e-5)
    target = base.fork().feed(ids, head="target", targets=targets, lengths=COUNTS)
    np.testing.assert_allclose(target, log_probs[rows], atol=1e-5)
    asked = np.array([[3], [-1], [5]])
    target = base.fork().feed(ids, head="target@last", targets=asked, lengths=COUNTS)
    np.testing.assert_allclose(target[:, 0], [last[0, 0, 3], np.nan, last[2, 0, 5]], atol=1e-5)
    top, best = base.fork().feed(ids, head="top_k", lengths=COUNTS)
    np.testing.assert_allclose(top, -np.sort(-log_probs, axis=-1), atol=1e-5)
    for b, n in enumerate(COUNTS):
        np.testing.assert_allclose(np.take_along_axis(log_probs[b, :n], best[b, :n], 1), top[b, :n], atol=1e-5)
        assert (best[b, n:] == -1).all() and np.isnan(log_probs[b, n:]).all() and np.isfinite(log_probs[b, :n]).all()


@pytest.mark.parametrize("n", [1, 2, 8, 9, 30])
def test_the_last_answer_alone(model, n):
    """However many calls it takes, from anywhere in the ring."""
    base = model("stepping").engine.session(B)
    base.feed(random_ids(base.info.config, B, 40), lengths=[40, 17, 3])
    ids = random_ids(base.info.config, B, n)
    every = base.fork().feed(ids)
    np.testing.assert_allclose(base.feed(ids, head="log_probs@last"), every[:, -1:], atol=1e-5)


def test_out_is_filled(model):
    base = model("stepping").engine.session(B)
    ids = random_ids(base.info.config, B, 9)
    block = np.zeros((B, 9, 2, 29), np.float32)
    out = block[:, :, 1]
    expected = base.fork().feed(ids, lengths=COUNTS)
    assert base.feed(ids, lengths=COUNTS, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert not block[:, :, 0].any()


@pytest.mark.parametrize(
    "wrong",
    [
        [1], [0, 0, 0], [1, 2, 10], [-1, 1, 1], [1.0, 1.0, 1.0], "abc", 3, [True] * 3, [2**70, 1, 1],
        np.ones((3, 1), int), [[1], [2, 3], [4]], np.full(3, 2**63, np.uint64),
    ],
    ids=str,
)  # fmt: skip
def test_lengths_that_are_none(model, wrong):
    session = model("stepping").engine.session(B)
    before = session._streams.state()
    with pytest.raises(InputError) as e:
        session.feed([[1] * 9] * B, lengths=wrong)
    assert "expected 3 numbers of 0 to 9, not all 0" in one_line(e.value)
    assert same_arrays(session._streams.state(), before)


def test_tokens_that_count_are_checked(model):
    session = model("stepping").engine.session(B)
    ids = np.ones((B, 9), int)
    ids[2, 8] = -1
    with pytest.raises(InputError, match="ids hold -1"):
        session.feed(ids, lengths=COUNTS)
    session.feed(ids, lengths=[5, 0, 8])


def test_layouts_that_move_all_streams_together_say_so(model):
    session = model("stepping").judge(None).session(B)
    for call in (lambda: session.feed([[1] * 9] * B, lengths=COUNTS), lambda: session.rewind(2)):
        with pytest.raises(InputError) as e:
            call()
        assert "--layout ring" in one_line(e.value)
    assert session.feed([[1] * 9] * B, lengths=[4] * B)[:, :4].shape == (B, 4, 29)


# How much is remembered


@pytest.mark.parametrize("wrong", [-1, 13, 1.0, True, "3"])
def test_a_memory_that_the_bundle_cannot_hold(model, wrong):
    with pytest.raises(InputError) as e:
        model("stepping").engine.session(1, wrong)
    assert "mem_len is" in one_line(e.value)


def test_a_saved_session_remembers_as_much_as_it_did(model, tmp_path):
    engine = model("stepping").engine
    short, full = engine.session(1, 4), engine.session(1)
    ids = random_ids(engine.info.config, 1, 30)
    short.feed(ids), full.feed(ids)
    short.save(tmp_path / "short"), full.save(tmp_path / "full")
    restored = engine.restore(tmp_path / "short")
    assert (restored.info.mem_len, engine.restore(tmp_path / "full").info.mem_len) == (4, 12)
    np.testing.assert_array_equal(restored.feed(ids), short.feed(ids))
    less = Engine.load(untraced("stepping", tmp_path), backend="typed", mem_len=4)
    np.testing.assert_array_equal(less.restore(tmp_path / "short").positions, [30])
    with pytest.raises(InputError) as e:
        less.restore(tmp_path / "full")
    assert "mem_len 12" in one_line(e.value)


@pytest.mark.parametrize("oldest", [30, 19])
def test_a_saved_session_that_lacks_rows(model, tmp_path, oldest):
    from safetensors.numpy import load_file, save_file

    engine = model("stepping").engine
    session = engine.session(1)
    session.feed(random_ids(engine.info.config, 1, 30))
    session.save(tmp_path / "s")
    tensors = load_file(tmp_path / "s")
    with (tmp_path / "s").open("rb") as f:
        header = f.read(int.from_bytes(f.read(8), "little"))
    assert tensors["oldest"].tolist() == [15]
    save_file(tensors | {"oldest": np.array([oldest])}, tmp_path / "s", json.loads(header)["__metadata__"])
    with pytest.raises(InputError, match="lacks rows"):
        engine.restore(tmp_path / "s")
