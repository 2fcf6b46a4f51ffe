"""Every head, for all positions and for the last, against the judge."""

import numpy as np
import pytest

from tests.helpers import random_ids
from txl_export.errors import InputError
from txl_export.heads import head_spec

KINDS = ("log_probs", "logits", "target", "top_k", "features")
HEADS = (*KINDS, *(f"{k}@last" for k in KINDS))
BUNDLES = [("adaptive", "kv"), ("plain", "hidden")]


@pytest.fixture(params=BUNDLES, ids=lambda p: "-".join(p))
def bundle(exported, request):
    return exported(*request.param, ("1-8",), HEADS)


def feed(session, ids, head):
    targets = None
    if head.startswith("target"):
        targets = random_ids(session.info.config, *ids.shape, seed=77)
        targets = targets[:, -1:] if head.endswith("@last") else targets
    return session.feed(ids, head=head, targets=targets)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("n", [1, 8, 13])
def test_agrees_with_the_judge(bundle, head, n):
    """13 tokens run as two calls."""
    ours, theirs = bundle.engine.session(2), bundle.judge.session(2)
    for i in range(3):
        ids = random_ids(bundle.config, 2, n, seed=i)
        a, b = feed(ours, ids, head), feed(theirs, ids, head)
        rows = 1 if head.endswith("@last") else n
        if head.startswith("top_k"):
            assert a.ids.dtype == np.int64 and a.log_probs.shape == a.ids.shape
            # The ids of equals may differ; what they say may not.
            all_of_them = theirs_log_probs(bundle, ids, i, n)[:, -rows:]
            np.testing.assert_allclose(np.take_along_axis(all_of_them, a.ids, -1), a.log_probs, atol=1e-4, rtol=0)
            a, b = a.log_probs, b.log_probs
            assert (np.diff(a, axis=-1) <= 0).all()
        tail = head_spec(head, bundle.config, ours.info.top_k).outputs[0].tail
        assert a.shape == b.shape == (2, rows, *tail) and a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=0)
    assert ours.positions.tolist() == [3 * n, 3 * n]


def theirs_log_probs(bundle, ids, i, n):
    judge = bundle.judge.session(2)
    for j in range(i):
        judge.feed(random_ids(bundle.config, 2, n, seed=j))
    return judge.feed(ids)


def test_softmax_of_logits_gives_the_probabilities(bundle):
    ids = random_ids(bundle.config, 2, 8)
    logits = bundle.engine.session(2).feed(ids, head="logits").astype(np.float64)
    log_probs = bundle.engine.session(2).feed(ids, head="log_probs")
    normaliser = np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(logits - normaliser, log_probs, atol=1e-4)
    np.testing.assert_allclose(np.exp(log_probs.astype(np.float64)).sum(-1), 1, atol=1e-5)
    assert np.abs(normaliser).max() > 0.1  # logits are not log-probs under another name


def test_targets_of_every_cluster(bundle):
    """Each token of the vocabulary as a target gives the log-probability that head log_probs gives it."""
    config = bundle.config
    for token in range(config.vocab_size):
        ids = random_ids(config, 1, 2, seed=token)
        targets = np.full((1, 2), token)
        asked = bundle.engine.session(1).feed(ids, head="target", targets=targets)
        full = bundle.engine.session(1).feed(ids, head="log_probs")
        np.testing.assert_allclose(asked, full[..., token], atol=1e-5)


def test_last_equals_the_last_of_all(bundle):
    ids = random_ids(bundle.config, 2, 11)
    for kind in ("log_probs", "logits", "features"):
        every = bundle.engine.session(2).feed(ids, head=kind)
        last = bundle.engine.session(2).feed(ids, head=f"{kind}@last")
        np.testing.assert_allclose(last, every[:, -1:], atol=1e-5)


def test_heads_share_the_memory(bundle):
    """A session may ask another head at every feed."""
    ours, theirs = bundle.engine.session(2), bundle.judge.session(2)
    for i, head in enumerate(HEADS):
        feed(ours, random_ids(bundle.config, 2, 5, seed=i), head)
        theirs.feed(random_ids(bundle.config, 2, 5, seed=i))
    ids = random_ids(bundle.config, 2, 5, seed=99)
    np.testing.assert_allclose(ours.feed(ids), theirs.feed(ids), atol=1e-4)


def test_top_k_is_cut_to_the_vocabulary(bundle):
    assert bundle.engine.info.top_k == min(40, bundle.config.vocab_size)


@pytest.mark.parametrize("name", ["probs", "log_probs@first", "@last", ""])
def test_unknown_head(bundle, name):
    with pytest.raises(InputError, match="log_probs"):
        head_spec(name, bundle.config, 4)
