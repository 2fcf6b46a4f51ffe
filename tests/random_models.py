"""Random models and histories, drawn by hypothesis, and the comparison of what two engines make of them.

The tests draw few models, the same in every run. `TXL_EXAMPLES=300 pytest -n 0 -k random_models` draws that many
others in each test, anew at every run; what fails is printed with the values that were drawn.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.helpers import random_checkpoint, random_ids
from txl_export.backends.eager import EagerModel, EagerStreams
from txl_export.backends.typed import TypedModel
from txl_export.bundle import WEIGHTS, Bundle
from txl_export.checkpoints import Checkpoint
from txl_export.config import CLUSTER_ORDERS, INITIAL_MEMORIES, Dialect, ModelConfig
from txl_export.graphs.export import _plan
from txl_export.precision import PrecisionPolicy
from txl_export.runtime import Engine, Session
from txl_export.runtime.session import TopK
from txl_export.segments import SegmentRange

LONGEST = 11  # tokens in the longest segment, beyond any M drawn here
STREAMS = 3
KINDS = ("log_probs", "logits", "target", "top_k", "features")
HEADS = (*KINDS, *(f"{k}@last" for k in KINDS))


def examples(usual: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with `usual` generators of random numbers, always the same ones, or with TXL_EXAMPLES others.

    The test takes `rng` and draws from it what it needs: unlike values that hypothesis draws one by one, no two
    models are nearly the same. Nothing is shrunk, for an export takes seconds; what was drawn is printed.
    """
    asked = os.environ.get("TXL_EXAMPLES")
    how = settings(
        max_examples=int(asked or usual),
        derandomize=not asked,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    return lambda test: how(given(rng=st.randoms(use_true_random=True))(test))


def random_config(rng: Random, **fixed: Any) -> ModelConfig:
    """Any architecture, but small; values of `fixed` are taken as they are."""
    mem_len, div_val, d_model = rng.choice([0, 1, 2, 3, 6, 8]), rng.choice([1, 2, 4]), rng.choice([4, 6, 8, 14])
    # Sizes of the shortlist and of up to three tails, clusters of one token among them.
    sizes = rng.choices([1, 2, 7, 12], k=rng.randint(1, 4))
    narrowest = div_val ** (len(sizes) - 1)
    values = {
        "vocab_size": sum(sizes), "cutoffs": tuple(accumulate(sizes[:-1])), "div_val": div_val, "d_model": d_model,
        "d_embed": rng.choice([n for n in (d_model, d_model, 3, 5, 9, 16, 33, 64, 70) if n >= narrowest]),
        "n_layer": rng.randint(1, 3), "n_head": rng.randint(1, 3), "d_head": rng.choice([1, 3, 4, 5, 7]),
        "d_inner": rng.choice([1, 9, 16]), "tie_weight": rng.random() < 0.5,
        "tie_projs": tuple(rng.random() < 0.5 for _ in sizes), "pre_lnorm": rng.random() < 0.5,
        "untie_r": rng.random() < 0.5, "same_length": rng.random() < 0.5, "mem_len": mem_len,
        "clamp_len": rng.choice([-1, -1, 0, 1, mem_len - 1, mem_len, mem_len + 1, 30]),
    }  # fmt: skip
    config = ModelConfig(**values | fixed)
    note(str(config))
    return config


def random_dialect(rng: Random, config: ModelConfig) -> Dialect:
    """Any dialect in which the configuration leaves a query a key to see."""
    dialect = Dialect(
        initial_memory=rng.choice(INITIAL_MEMORIES),
        window_extra=1 if config.same_length and not config.mem_len else rng.randint(0, 1),
        cluster_order=rng.choice(CLUSTER_ORDERS),
        layer_norm_eps=rng.choice([1e-5, 1e-12, 1e-3, 0.1]),
    )
    note(str(dialect))
    return dialect


def random_model(rng: Random) -> Checkpoint:
    """Any small model of any dialect, its tensors all random."""
    config = random_config(rng)
    return random_checkpoint(config, random_dialect(rng, config), seed=rng.randint(0, 999), std=0.3)


@dataclass(frozen=True)
class Step:
    """Streams that start anew, then tokens for all of them."""

    reset: frozenset[int]
    length: int
    segment_len: int


def random_history(rng: Random, longest: int = 3 * LONGEST, most: int = 8) -> list[Step]:
    """Up to `most` steps of up to `longest` tokens; then all go on until the memory has wrapped twice."""
    steps = []
    for _ in range(rng.randint(3, most)):
        reset = frozenset(rng.sample(range(STREAMS), rng.choice([0, 0, 1, 1, 2, 3])))
        # Beyond LONGEST a feed is several segments.
        length = rng.choice([1, rng.randint(1, min(longest, LONGEST)), rng.randint(1, longest)])
        steps.append(Step(reset, length, rng.choice([LONGEST, LONGEST, 1, 4])))
    note(str(steps))
    return [*steps, *(Step(frozenset(), n, LONGEST) for n in (7, 2, 1, LONGEST, 3))]


def storing(checkpoint: Checkpoint, mem_len: int) -> Checkpoint:
    """The checkpoint with another M in its configuration, as training left it."""
    return dataclasses.replace(checkpoint, config=dataclasses.replace(checkpoint.config, mem_len=mem_len))


def module_engine(checkpoint: Checkpoint, mem_len: int, layout: str, heads: tuple[str, ...]) -> Engine:
    """The module that a bundle's graphs are traced from, without tracing it."""
    segments = (SegmentRange(1, LONGEST),)
    manifest = _plan(checkpoint, mem_len, segments, layout, PrecisionPolicy("fp32"), heads, None, 5)
    manifest.files[WEIGHTS] = {"sha256": ""}  # type: ignore[index] - a plain dict
    return Engine(TypedModel(Bundle(Path("nowhere"), manifest, judge=checkpoint), LONGEST))


class Judge:
    """The reference in float32, and in float64 beside it: what they differ by is rounding."""

    def __init__(self, checkpoint: Checkpoint, mem_len: int) -> None:
        self.config = checkpoint.config
        single, double = (EagerModel(checkpoint, mem_len, LONGEST, top_k=5) for _ in range(2))
        self.single, self.double = Engine(single).session(STREAMS), Engine(double.double()).session(STREAMS)
        self.rounding = 0.0

    def feed(self, ids: np.ndarray, step: Step, **request: Any) -> Any:
        answer, exact = (s.feed(ids, step.segment_len, **request) for s in (self.single, self.double))
        self.rounding = max(self.rounding, _difference(answer, exact))
        return answer

    def reset(self, streams: frozenset[int]) -> None:
        self.single.reset(streams), self.double.reset(streams)

    def memory(self, stream: int, layout: str) -> list[dict[str, np.ndarray]]:
        assert isinstance(self.single._streams, EagerStreams)
        return self.single._streams.projected_memory(stream, layout)


def request(head: str, config: ModelConfig, length: int, seed: int) -> dict[str, Any]:
    """Arguments of `feed` that ask a head."""
    if not head.startswith("target"):
        return {"head": head}
    return {"head": head, "targets": random_ids(config, STREAMS, 1 if head.endswith("@last") else length, seed + 500)}


def walk(judge: Judge, sessions: list[Session], heads: tuple[str, ...], history: list[Step]) -> None:
    """Give all the same history: answers and memories agree after every step."""
    for i, step in enumerate(history):
        judge.reset(step.reset)
        ids = random_ids(judge.config, STREAMS, step.length, i)
        asked = request(heads[i % len(heads)], judge.config, step.length, i)
        expected = judge.feed(ids, step, **asked)
        for session in sessions:
            session.reset(step.reset)
            found = session.feed(ids, step.segment_len, **asked)
            same_answers(found, expected, max(1e-4, 5 * judge.rounding), f"step {i}, head {asked['head']}")
            assert session.positions.tolist() == judge.single.positions.tolist()
            same_memory(session, judge, f"step {i}")


def same_answers(found: Any, expected: Any, tolerance: float, where: str) -> None:
    """Equal but for rounding; which of equally probable tokens stands first is open."""
    for a, b in _arrays(found, expected):
        assert a.shape == b.shape and a.dtype == b.dtype, where
        np.testing.assert_allclose(a, b, atol=tolerance * max(1, np.abs(b).max() / 50), rtol=0, err_msg=where)


def same_memory(session: Session, judge: Judge, where: str) -> None:
    """What a session remembers of every stream is the reference's, as the session's layout keeps it."""
    for stream in range(STREAMS):
        pairs = zip(session.memory_tensors(stream), judge.memory(stream, session.info.layout), strict=True)
        for n, (found, expected) in enumerate(pairs):
            if not session.info.mem_len:
                assert found == {}
                continue
            assert found.keys() == expected.keys()
            for kind in found:
                a, b = found[kind], expected[kind]
                place = f"{where}, stream {stream}, layer {n}, {kind}"
                assert a.shape == b.shape, place
                limit = 1e-5 * np.abs(b).max(initial=1) + 5 * judge.rounding
                np.testing.assert_allclose(a, b, atol=limit, rtol=0, err_msg=place)


def _difference(a: Any, b: Any) -> float:
    return max(float(np.abs(x - y).max()) for x, y in _arrays(a, b))


def _arrays(a: Any, b: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs of arrays to compare; of head `top_k` only the log-probabilities."""
    yield (a.log_probs, b.log_probs) if isinstance(a, TopK) else (a, b)
