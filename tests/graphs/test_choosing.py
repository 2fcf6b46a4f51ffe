"""Which products keep their weights in few bits: by what rounding costs a text, alone and together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.bundles import checkpoint_of
from tests.graphs.test_few_bits import exact
from tests.helpers import random_ids
from txl_export.bundle import GraphSpec, Manifest
from txl_export.checkpoints import Checkpoint
from txl_export.graphs import choosing
from txl_export.graphs.choosing import BUDGET, choose_by_perplexity, choose_policy
from txl_export.graphs.stored import InBlocks
from txl_export.number_types import FORMATS
from txl_export.precision import PrecisionPolicy
from txl_export.reference import TransformerXL
from txl_export.segments import SegmentRange
from txl_export.tokens import Tokens

SHARE = BUDGET / 5  # W_qkv, W_o, W_1, W_2 and logits: the models here have no projections
Choose = Callable[..., PrecisionPolicy]


def planned(checkpoint: Checkpoint) -> Manifest:
    """Of a bundle of int8 to be."""
    graph = GraphSpec("", SegmentRange(1, 8), "log_probs")
    c = checkpoint.config
    return Manifest(
        config=c,
        dialect=checkpoint.dialect,
        layout="hidden",
        policy=PrecisionPolicy("int8"),
        mem_len=c.mem_len,
        segment_len=8,
        top_k=5,
        max_batch=4096,
        graphs=(graph,),
    )


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """choose({name: nats}): the policy where rounding adds so many nats per token."""
    manifest = planned(checkpoint_of("paper"))
    tokens = Tokens(random_ids(manifest.config, 4, 50), "a text", True)

    def call(cost: dict[str, float], joint: float = 0.0) -> PrecisionPolicy:
        runs: list[set[str]] = []

        def nats(graph: object, model: object, m: object, ids: object) -> float:
            policy = m.policy  # type: ignore[attr-defined]
            names = {n for kind in choosing._kinds(manifest.config) for n in kind if policy.of(n) == "int8"}
            runs.append(names)
            kinds = {n.rpartition(".")[2] for n in names}
            return 1.0 + sum(cost.get(n, 0.0) for n in names) + joint * (len(kinds) > 1)

        monkeypatch.setattr(choosing, "SegmentGraph", lambda model, m: None)
        monkeypatch.setattr(choosing, "_nats", nats)
        progress: list[tuple[int, int]] = []
        policy = choose_by_perplexity(None, manifest, tokens, lambda *step: progress.append(step))  # type: ignore[arg-type]
        assert [done for done, _ in progress] == list(range(1, len(runs) + 1))
        assert all(done <= of for done, of in progress) and progress[-1][0] == progress[-1][1]
        return policy

    return call


def in_fp32(policy: PrecisionPolicy) -> set[str]:
    return set(policy.in_fp32())


def test_what_costs_nothing_is_in_few_bits(choose: Choose):
    policy = choose({"layers.0.W_1": 0.9 * SHARE})
    assert in_fp32(policy) == set()
    assert policy.of("layers.1.W_qkv") == policy.of("logits") == "int8"
    assert policy.of("layers.0.content") == policy.of("memory") == policy.of("norm") == "fp32"
    assert policy.choices["layers.1.W_1"].why == "int8 here alone changes perplexity by 0.045 %"
    assert policy.calibration.startswith("a text, 4 streams of 50 tokens: with all of them perplexity changes by 0.045")


def test_of_a_kind_that_costs_too_much_the_cheap_layers_are(choose: Choose):
    policy = choose({"layers.0.W_2": 3 * SHARE, "layers.1.W_2": 0.5 * SHARE, "logits": 1.1 * SHARE})
    assert in_fp32(policy) == {"layers.0.W_2", "logits"}
    assert policy.choices["layers.0.W_2"].why == "int8 here alone changes perplexity by 0.15 %, its share is 0.05 %"
    assert policy.choices["layers.1.W_2"].why == "int8 here alone changes perplexity by 0.025 %"
    told = policy.describe()
    assert told[1].startswith("fp32: W_2 of layers 0: int8 here alone") and told[2].startswith("fp32: logits: ")


def test_layers_share_what_their_kind_may_cost(choose: Choose):
    policy = choose({"layers.0.W_o": 0.7 * SHARE, "layers.1.W_o": 0.6 * SHARE})
    assert in_fp32(policy) == {"layers.0.W_o"}


def test_a_gain_is_a_change_too(choose: Choose):
    """Perplexity that falls by more than noise is as far from the trained model's."""
    assert in_fp32(choose({"logits": -2 * SHARE})) == {"logits"}


def test_numbers_that_overflow_are_left_in_fp32(choose: Choose):
    policy = choose({"layers.1.W_1": float("nan")})
    assert in_fp32(policy) == {"layers.1.W_1"}
    assert "nan" in policy.choices["layers.1.W_1"].why


def test_what_adds_up_to_too_much_is_given_up_from_the_costliest_on(choose: Choose):
    policy = choose({"logits": 0.5 * SHARE, "layers.0.W_1": 0.9 * SHARE}, joint=BUDGET)
    assert in_fp32(policy) >= {"layers.0.W_1", "layers.1.W_1", "logits"}
    assert "; with the others 0.3" in policy.choices["layers.1.W_1"].why
    assert len({n.rpartition(".")[2] for n in policy.choices} - {n.rpartition(".")[2] for n in in_fp32(policy)}) == 1


def representable(checkpoint: Checkpoint) -> Checkpoint:
    """A model whose weights int8 holds as they are."""
    stored = InBlocks(FORMATS["int8"])

    def rounded(name: str, w: np.ndarray) -> np.ndarray:
        kept = stored.tensors(torch.from_numpy(w)) if w.ndim == 2 and "u" != name != "v" else None
        return w if kept is None else stored.weight(kept, w.shape[1]).numpy()

    return dataclasses.replace(checkpoint, weights={n: rounded(n, w) for n, w in checkpoint.weights.items()})


def test_a_weight_that_rounding_destroys_is_found(monkeypatch: pytest.MonkeyPatch):
    """Unit 0 of a feed-forward layer is dead, and its weights so large that all others round to nothing."""
    exact(monkeypatch)
    checkpoint = representable(checkpoint_of("paper"))
    weights = dict(checkpoint.weights)
    ff = "layers.1.feed_forward."
    for name, index, value in (("W_1", 0, 0.0), ("b_1", 0, -1.0), ("W_2", (slice(None), 0), 1e4)):
        weights[ff + name] = weights[ff + name].copy()
        weights[ff + name][index] = value
    broken = dataclasses.replace(checkpoint, weights=weights)
    tokens = Tokens(random_ids(checkpoint.config, 8, 100), "ids", True)
    policy = choose_policy(TransformerXL.from_checkpoint(broken), planned(broken), tokens)
    assert policy.in_fp32() == ["layers.1.W_2"]
    assert policy.calibration.startswith("ids, 8 streams of 100 tokens: with all of them perplexity changes by ")
