"""Sessions of layout `ring` against the judge, which runs every stream alone: whatever happens, the same numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.bundles import RING_CUT, RING_LENS, RING_REWIND, Exported, checkpoint_of, one_line, same_arrays, untraced
from tests.helpers import random_ids
from txl_export import Engine, Session
from txl_export.backends.onnxruntime import OnnxRuntimeRing
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
def model(exported: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """model("stepping", ...): on backend `typed`, or "stepping on ort", "sliding in half on ort"."""

    @functools.cache
    def get(words: str) -> Model:
        name, *how = words.split(" ")
        tolerance, precision = (HALF, "fp16") if "half" in how else (EXACT, "fp32")
        if "ort" in how:
            bundle = exported(name, "ring", RING_LENS, precision=precision, segment_len=RING_CUT, rewind=RING_REWIND)
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
                self.streams[b], ids = self.past[b].pop()
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


def fail(session: Session, at: int, after: bool, n: int = 40) -> None:
    """A feed that fails at a call, which leaves everything as it was."""
    before = session._streams.state()
    failing = Failing(session._streams.run, at, after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session._streams, "run", failing)
        with pytest.raises(RuntimeError, match="device lost"):
            session.feed(random_ids(session.info.config, session.batch_size, n, seed=at), segment_len=RING_CUT)
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


RANDOM = settings(max_examples=8, phases=set(Phase) - {Phase.explain}, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
