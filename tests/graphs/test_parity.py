"""Exported graphs against the eager judge, segment after segment, past many wraps of the memory."""

import numpy as np
import pytest

from tests.bundles import Exported
from tests.helpers import random_ids
from txl_export.backends.eager import EagerStreams

TOLERANCE = 1e-4
SEGMENTS = 200
MODELS = ["paper", "same_length", "wider_window", "zeros_pre_lnorm", "no_memory", "short_memory"]


def run_both(bundle: Exported, batch_size: int, lengths: list[int], seed: int) -> None:
    """Feed the same tokens to bundle and judge; log-probs after every feed and the memory now and then agree."""
    ours, theirs = bundle.engine.session(batch_size), bundle.judge.session(batch_size)
    for i, n in enumerate(lengths):
        ids = random_ids(bundle.config, batch_size, n, seed=seed * 1000 + i)
        error = np.abs(ours.feed(ids) - theirs.feed(ids)).max()
        assert error < TOLERANCE, f"feed {i} of {n} tokens: {error}"
        if i % 49 in (0, 1, 2):
            same_memory(bundle, ours, theirs)
    assert ours.positions.tolist() == theirs.positions.tolist() == [sum(lengths)] * batch_size
    same_memory(bundle, ours, theirs)


def same_memory(bundle: Exported, ours, theirs) -> None:
    """`memory_tensors` equals the reference's own projections of its hidden states, row by row."""
    judged = theirs._streams
    assert isinstance(judged, EagerStreams)
    for stream in range(ours.batch_size):
        found = ours.memory_tensors(stream)
        expected = judged.projected_memory(stream, ours.info.layout)
        assert len(found) == len(expected) == bundle.config.n_layer
        for layer, wanted in zip(found, expected, strict=True):
            if not ours.info.mem_len:
                assert layer == {}
                continue
            assert layer.keys() == wanted.keys()
            for kind in layer:
                assert layer[kind].shape == wanted[kind].shape
                np.testing.assert_allclose(layer[kind], wanted[kind], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", ["hidden", "kv"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_mixed_lengths_over_200_segments(exported, name, layout, batch_size):
    """One stream, whose numbers are a batch's of one, over a quarter of them."""
    rng = np.random.default_rng(batch_size)
    lengths = [int(n) for n in rng.choice([1, 1, 2, 7, 7, 13, 64], SEGMENTS if batch_size > 1 else SEGMENTS // 4)]
    run_both(exported(name, layout), batch_size, lengths, seed=batch_size)


@pytest.mark.parametrize("layout", ["hidden", "kv"])
@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_equal_lengths_over_200_segments(exported, layout, length, batch_size):
    """Each length by the graph that was made for it, and as one segment; of 64 tokens, five times the memory, 50."""
    bundle = exported("stepping", layout, (1, 7, 64))
    run_both(bundle, batch_size, [length] * (SEGMENTS if length < 64 else SEGMENTS // 4), seed=5)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_fixed_lengths_of_same_length(exported, batch_size):
    bundle = exported("sliding", "kv", (1, 8))
    rng = np.random.default_rng(batch_size)
    run_both(bundle, batch_size, [int(n) for n in rng.choice([1, 8, 5, 23], 100)], seed=9)


def test_hidden_memory_is_the_papers(exported):
    bundle = exported("paper", "hidden")
    ours, theirs = bundle.engine.session(2), bundle.judge.session(2)
    for n in (3, 8, 30):
        ids = random_ids(bundle.config, 2, n, seed=n)
        ours.feed(ids), theirs.feed(ids)
        for a, b in zip(ours.memory(1), theirs.memory(1), strict=True):
            assert a.shape == (min(24, ours.positions[1]), 16)
            np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=0)


def test_first_memory_of_zeros_is_attended_to(exported):
    """The constant rows: a zero memory's keys and values, which under pre-LN are W_kE β and W_v β."""
    bundle = exported("zeros_pre_lnorm")
    session = bundle.engine.session(1)
    w = bundle.checkpoint.weights
    key = w["layers.0.attention.W_kE"] @ w["layers.0.attention.norm.bias"]
    kept = session.memory_tensors(0)[0]["key"]
    assert kept.shape == (2, 24, 6)
    np.testing.assert_allclose(kept, np.broadcast_to(key.reshape(2, 1, 6), kept.shape), atol=1e-6)
    assert np.abs(kept).max() > 0.01
    session.feed(random_ids(bundle.config, 1, 30))
    session.reset()
    np.testing.assert_array_equal(session.memory_tensors(0)[0]["key"], kept)
    assert session.positions.tolist() == [0]
