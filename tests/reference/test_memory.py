"""What the memory holds, how segments may be cut, and that the gradient stops at it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import random_checkpoint, random_ids, tiny_config
from txl_export.config import Dialect
from txl_export.reference import Memory, TransformerXL
from txl_export.reference.attention import clamped_distances, relative_shift, sinusoid

DIALECTS = st.builds(Dialect, initial_memory=st.sampled_from(["empty", "zeros"]), window_extra=st.sampled_from([0, 1]))
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def model_of(dialect=None, **changes):
    checkpoint = random_checkpoint(tiny_config(**changes), dialect, std=0.3)
    return TransformerXL.from_checkpoint(checkpoint).double()


def tokens(model, batch_size, length, seed=0):
    return torch.from_numpy(random_ids(model.config, batch_size, length, seed))


def feed(model, ids, cuts):
    """All log-probabilities and the last memory of `ids`, cut into segments of the lengths `cuts`."""
    memory, out = None, []
    for segment in ids.split(cuts, dim=1):
        log_probs, memory = model(segment, memory)
        out.append(log_probs)
    return torch.cat(out, 1), memory


@given(CUTS, st.integers(1, 8), DIALECTS, st.sampled_from([-1, 3]), st.booleans())
def test_with_same_length_any_cut_gives_the_same(cuts, mem_len, dialect, clamp_len, pre_lnorm):
    model = model_of(dialect, mem_len=mem_len, same_length=True, clamp_len=clamp_len, pre_lnorm=pre_lnorm)
    ids = tokens(model, 2, sum(cuts))
    by_segment, memory = feed(model, ids, cuts)
    by_token, memory_1 = feed(model, ids, [1] * sum(cuts))
    torch.testing.assert_close(by_segment, by_token, rtol=0, atol=1e-10)
    torch.testing.assert_close(memory.hidden, memory_1.hidden, rtol=0, atol=1e-10)
    assert memory.filled.equal(memory_1.filled)


def test_without_same_length_the_cut_matters():
    model = model_of()
    ids = tokens(model, 1, 12)
    assert (feed(model, ids, [12])[0] - feed(model, ids, [4, 4, 4])[0]).abs().max() > 1e-3


@given(CUTS, st.integers(0, 12), st.sampled_from(["empty", "zeros"]))
def test_the_memory_is_the_last_inputs_of_every_layer(cuts, mem_len, initial):
    model = model_of(Dialect(initial_memory=initial), mem_len=mem_len)
    inputs = [[] for _ in model.layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        for layer, seen in zip(model.layers, inputs, strict=True)
    ]
    _, memory = feed(model, tokens(model, 2, sum(cuts)), cuts)
    for hook in hooks:
        hook.remove()
    for rows, seen in zip(memory.hidden, inputs, strict=True):
        zeros = torch.zeros(2, mem_len if initial == "zeros" else 0, model.config.d_model)
        past = torch.cat([zeros, *seen], dim=1)
        expected = past[:, max(0, past.shape[1] - mem_len) :]
        assert rows.equal(expected)
    assert memory.filled.tolist() == [min(mem_len, sum(cuts)) if initial == "empty" else mem_len] * 2
    assert memory.length == memory.hidden[0].shape[1] == memory.filled.max()


@given(st.integers(1, 6), st.integers(1, 6))
def test_a_long_memory_joins_two_feeds(first, second):
    model = model_of(mem_len=12)
    ids = tokens(model, 2, first + second)
    whole, memory = feed(model, ids, [first + second])
    parts, memory_2 = feed(model, ids, [first, second])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(memory_2.hidden, memory.hidden, rtol=0, atol=1e-10)


def test_a_segment_does_not_see_its_future():
    model = model_of()
    ids = tokens(model, 1, 8)
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 29
    a, b = model(ids)[0], model(changed)[0]
    torch.testing.assert_close(a[:, :5], b[:, :5], rtol=0, atol=1e-12)
    assert (a[:, 5:] - b[:, 5:]).abs().amax(-1).min() > 1e-6


def test_a_call_may_choose_the_memory_length():
    model, other = model_of(mem_len=6), model_of(mem_len=3)
    ids = tokens(model, 2, 8)
    _, memory = model(ids, mem_len=3)
    _, expected = other(ids)
    for a, b in zip(memory.hidden, expected.hidden, strict=True):
        assert a.equal(b)
    assert model(ids[:, :2], memory, mem_len=3)[0].equal(other(ids[:, :2], expected)[0])
    assert model.initial_memory(2, 3).length == 0


@given(st.integers(1, 6), st.integers(0, 6))
def test_relative_shift_aligns_distances_with_keys(L, n):
    K = n + L
    x = torch.arange(K - 1.0, -1, -1).expand(2, L, K)  # column r belongs to distance K - 1 - r
    shifted = relative_shift(x)
    for i in range(L):
        for j in range(K - L + i + 1):
            assert shifted[0, i, j] == shifted[1, i, j] == K - L + i - j


def test_distances_and_sinusoids():
    like = torch.zeros((), dtype=torch.float64)
    assert clamped_distances(5, 2, like).tolist() == [2, 2, 2, 1, 0]
    for none in (-1, 0):
        assert clamped_distances(3, none, like).tolist() == [2, 1, 0]
    R = sinusoid(torch.tensor([0.0, 3.0], dtype=torch.float64), 4)
    expected = torch.tensor([[0, 0, 1, 1], [3, 0.03, 3, 0.03]], dtype=torch.float64)
    expected[1] = torch.cat([expected[1, :2].sin(), expected[1, 2:].cos()])
    torch.testing.assert_close(R, expected)


def test_the_gradient_stops_at_the_memory():
    model = TransformerXL(tiny_config()).double()
    ids = tokens(model, 2, 10)
    first, second = ids[:, :5], ids[:, 5:]

    def gradients(detach):
        model.zero_grad()
        _, memory = model(first)
        if detach:
            memory = Memory(tuple(h.detach().clone() for h in memory.hidden), memory.filled)
        log_probs, _ = model(second, memory)
        log_probs[..., 0].sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    for a, b in zip(gradients(False), gradients(True), strict=True):
        assert a.equal(b)
    # The embedding of a token that only the memory holds gets nothing through it (untied: no softmax row).
    model = TransformerXL(tiny_config(tie_weight=False)).double()
    _, memory = model(torch.full((1, 4), 3))
    assert not any(h.requires_grad for h in memory.hidden)
    log_probs, _ = model(torch.full((1, 4), 5), memory)
    log_probs[..., 0].sum().backward()
    grad = model.embedding.tables[0].grad
    assert grad[5].abs().max() > 0 and grad[3].abs().max() == 0


def test_it_trains():
    torch.manual_seed(0)
    model = TransformerXL(tiny_config(dropout=0.05, dropatt=0.05, cutoffs=(9, 17), div_val=2))
    text = torch.tensor([[3, 20, 11, 7, 28, 1, 15] * 8])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        memory = None
        for start in range(0, 48, 12):
            ids, targets = text[:, start : start + 12], text[:, start + 1 : start + 13]
            log_probs, memory = model.target_log_probs(ids, targets, memory)
            loss = -log_probs.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.5 and losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("order", ["forward", "reversed"])
@pytest.mark.parametrize("changes", [{}, {"cutoffs": (9,)}, {"cutoffs": (9, 17), "div_val": 2}], ids=repr)
def test_target_log_probs_are_in_token_order(changes, order):
    model = model_of(Dialect(cluster_order=order), **changes)
    ids, targets = tokens(model, 3, 7), tokens(model, 3, 7, seed=1)
    targets[0] = 28  # a row of rare tokens only
    log_probs, memory = model(ids)
    found, memory_2 = model.target_log_probs(ids, targets)
    torch.testing.assert_close(found, log_probs.gather(-1, targets[..., None])[..., 0], rtol=0, atol=1e-12)
    assert all(a.equal(b) for a, b in zip(memory.hidden, memory_2.hidden, strict=True))
    common = torch.zeros_like(targets)
    torch.testing.assert_close(model.target_log_probs(ids, common)[0], log_probs[..., 0], rtol=0, atol=1e-12)
