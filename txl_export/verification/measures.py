"""How far two answers of a head are apart; one function per head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from txl_export.runtime.session import TopK

Answer = np.ndarray | TopK
# Tokens whose log-probabilities the reference puts closer than this are a tie: rounding may order them either way.
TIE = 1e-4


@dataclass(frozen=True)
class Measures:
    """Distances of one segment's answers, over all streams and positions.

    Attributes:
        max_abs: largest difference; of log-probabilities in nats, or of features.
        mean_abs: mean difference.
        kl: mean KL divergence from the reference, nats; None where the head gives no distribution.
        top1: share of positions whose best token is the reference's, ties counted as equal; or None.
        top5: mean share of the reference's five best tokens among the five best; or None.
        nll: sum of the negative log-probabilities of the targets; or None.
        nll_reference: the same of the reference.
        targets: number of targets in these sums.
    """

    max_abs: float
    mean_abs: float
    kl: float | None = None
    top1: float | None = None
    top5: float | None = None
    nll: float | None = None
    nll_reference: float | None = None
    targets: int = 0


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _distributions(found: np.ndarray, expected: np.ndarray, targets: np.ndarray) -> Measures:
    """Compare log-probabilities [B, n, V], in float64."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - expected)
        terms = np.exp(expected) * (expected - found)
    best, mine = expected.argmax(-1)[..., None], found.argmax(-1)[..., None]
    gap = np.take_along_axis(expected, best, -1) - np.take_along_axis(expected, mine, -1)
    five = min(5, found.shape[-1])
    top_found = np.argpartition(-found, five - 1, axis=-1)[..., :five]
    top_expected = np.argpartition(-expected, five - 1, axis=-1)[..., :five]
    shared = (top_found[..., :, None] == top_expected[..., None, :]).any(-1).mean()
    at = targets[..., None]
    return Measures(
        max_abs=_max(apart),
        mean_abs=float(apart.mean()),
        kl=float(terms.sum(-1).mean()),
        top1=float((gap <= TIE).mean()),
        top5=float(shared),
        nll=-float(np.take_along_axis(found, at, -1).sum()),
        nll_reference=-float(np.take_along_axis(expected, at, -1).sum()),
        targets=targets.size,
    )


def _max(apart: np.ndarray) -> float:
    """The largest entry, NaN counted as infinitely far."""
    return float(np.where(np.isnan(apart), np.inf, apart).max())


def _log_probs(found: Answer, expected: Answer, targets: np.ndarray) -> Measures:
    return _distributions(np.asarray(found), np.asarray(expected), targets)


def _logits(found: Answer, expected: Answer, targets: np.ndarray) -> Measures:
    mine, reference = (_log_softmax(np.asarray(a, dtype=np.float64)) for a in (found, expected))
    return _distributions(mine, reference, targets)


def _target(found: Answer, expected: Answer, targets: np.ndarray) -> Measures:
    del targets
    f, e = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    apart = np.abs(f - e)
    return Measures(
        _max(apart), float(apart.mean()), nll=-float(f.sum()), nll_reference=-float(e.sum()), targets=f.size
    )


def _top_k(found: Answer, expected: Answer, targets: np.ndarray) -> Measures:
    del targets
    assert isinstance(found, TopK) and isinstance(expected, TopK)
    apart = np.abs(found.log_probs.astype(np.float64) - expected.log_probs)
    swapped = found.ids[..., 0] != expected.ids[..., 0]
    # A different best token is a tie when the reference's next one is as probable.
    runner_up = expected.log_probs[..., min(1, expected.log_probs.shape[-1] - 1)]
    tie = expected.log_probs[..., 0] - runner_up <= TIE
    five = min(5, found.ids.shape[-1])
    shared = (found.ids[..., :five, None] == expected.ids[..., None, :five]).any(-1).mean()
    return Measures(_max(apart), float(apart.mean()), top1=float((~swapped | tie).mean()), top5=float(shared))


def _features(found: Answer, expected: Answer, targets: np.ndarray) -> Measures:
    del targets
    apart = np.abs(np.asarray(found, dtype=np.float64) - np.asarray(expected))
    return Measures(_max(apart), float(apart.mean()))


# One line per head.
MEASURES: dict[str, Callable[[Answer, Answer, np.ndarray], Measures]] = {
    "log_probs": _log_probs,
    "logits": _logits,
    "target": _target,
    "top_k": _top_k,
    "features": _features,
}
