"""The arithmetic of verification on planted differences."""

import dataclasses
import math

import numpy as np
import pytest

from txl_export.runtime.session import TopK
from txl_export.verification.measures import MEASURES, Measures
from txl_export.verification.report import Noise, Report, SegmentResult
from txl_export.verification.trend import ENOUGH, Trend, fit


def log_probs(*rows: list[float]) -> np.ndarray:
    return np.log(np.array([rows], dtype=np.float64)).astype(np.float32)


def test_a_known_difference_is_measured() -> None:
    expected = log_probs([0.5, 0.3, 0.2], [0.2, 0.2, 0.6])
    found = log_probs([0.4, 0.4, 0.2], [0.2, 0.2, 0.6])
    m = MEASURES["log_probs"](found, expected, np.array([[0, 2]]))
    assert m.max_abs == pytest.approx(math.log(0.4 / 0.3), rel=1e-5)
    assert m.kl == pytest.approx((0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.4)) / 2, rel=1e-4)
    assert m.nll == pytest.approx(-math.log(0.4) - math.log(0.6), rel=1e-5)
    assert m.nll_reference == pytest.approx(-math.log(0.5) - math.log(0.6), rel=1e-5)
    assert m.targets == 2


def test_best_tokens_that_differ_count_unless_they_tie() -> None:
    expected = log_probs([0.5, 0.3, 0.2], [0.40001, 0.4, 0.19999])
    found = log_probs([0.3, 0.5, 0.2], [0.4, 0.40001, 0.19999])
    assert MEASURES["log_probs"](found, expected, np.array([[0, 0]])).top1 == 0.5


def test_logits_are_compared_as_distributions() -> None:
    expected = log_probs([0.5, 0.3, 0.2])
    assert MEASURES["logits"](expected + 7, expected, np.array([[0]])).max_abs < 1e-6


def test_nan_is_infinitely_far() -> None:
    expected = log_probs([0.5, 0.3, 0.2])
    found = expected.copy()
    found[0, 0, 1] = np.nan
    assert MEASURES["log_probs"](found, expected, np.array([[0]])).max_abs == math.inf
    assert MEASURES["features"](found, expected, np.array([[0]])).max_abs == math.inf


def test_top_k_notices_other_tokens() -> None:
    values = np.log(np.array([[[0.5, 0.3]]], np.float32))
    expected, found = TopK(values, np.array([[[4, 7]]])), TopK(values, np.array([[[7, 4]]]))
    same = MEASURES["top_k"](expected, expected, np.array([[0]]))
    assert (same.top1, same.top5) == (1.0, 1.0)
    m = MEASURES["top_k"](found, expected, np.array([[0]]))
    assert (m.top1, m.top5) == (0.0, 1.0)


def steady(n: int, growth: float = 0.0) -> Trend:
    rng = np.random.default_rng(0)
    errors = [2e-6 * (1 + growth * i) * (1 + 0.2 * rng.standard_normal()) for i in range(n)]
    return fit(errors, [64 * i for i in range(n)], settled=640, segment_len=64)


def test_growing_errors_are_drift_and_steady_ones_are_not() -> None:
    assert steady(64).drifts is False
    assert steady(64, growth=0.1).drifts is True
    assert steady(64).segments == 54


def test_a_run_that_is_too_short_says_how_long_it_must_be() -> None:
    trend = steady(10 + ENOUGH - 1, growth=1.0)
    assert trend.drifts is None and str(640 + ENOUGH * 64) in trend.describe()
    assert steady(10 + ENOUGH).drifts is False


def report(**changes: object) -> Report:
    segment = SegmentResult(0, 0, 4, Measures(3e-5, 1e-6, 0.0, 1.0, 1.0, 40.0, 40.0, 4), (0.0,))
    usual = {"bundle": "b", "checkpoint": "c", "backend": "onnxruntime", "layout": "kv", "precision": "fp32",
             "head": "log_probs", "mem_len": 8, "segment_len": 4, "batch_size": 1, "source": "text", "real": True,
             "segments": (segment,), "trend": Trend(0, None, None, 40)}  # fmt: skip
    return Report(**usual | changes)


def with_measures(**changes: object) -> Report:
    r = report()
    measures = dataclasses.replace(r.segments[0].measures, **changes)
    return dataclasses.replace(r, segments=(dataclasses.replace(r.segments[0], measures=measures),))


def test_each_tolerance_can_fail() -> None:
    assert report().passed
    assert "tolerance 1.0e-04" in with_measures(max_abs=2e-4).failure
    assert "log_probs differs" in with_measures(max_abs=math.inf).failure
    assert "best token" in with_measures(top1=0.99).failure
    assert "perplexity" in with_measures(nll=40.00002).failure
    assert dataclasses.replace(with_measures(nll=40.00002), real=False).passed
    assert "grow" in report(trend=Trend(20, 1e-6, True, 40)).failure


def test_half_precision_is_judged_by_its_best_tokens_over_all_segments() -> None:
    """Of 1,600 positions 16 may differ, wherever they are; of 20 a single one."""
    half = dataclasses.replace(report(), precision="fp16", batch_size=1)

    def differing(positions: int, count: int) -> Report:
        share = Measures(0.5, 0.1, top1=1 - count / positions)
        return dataclasses.replace(half, segments=(SegmentResult(0, 0, positions, share, (0.0,)),))

    assert differing(1600, 16).passed
    assert not differing(1600, 17).passed
    assert differing(20, 1).passed
    assert not differing(20, 2).passed
    both = (*differing(100, 3).segments, *differing(1500, 0).segments)
    assert dataclasses.replace(half, segments=both).passed


def test_the_references_own_rounding_widens_the_tolerance_and_only_as_far() -> None:
    noisy = with_measures(max_abs=4e-4)
    assert dataclasses.replace(noisy, noise=Noise(1e-4, 0.0)).passed
    assert not dataclasses.replace(noisy, noise=Noise(7e-5, 0.0)).passed
    assert dataclasses.replace(noisy, noise=Noise(1e-6, 0.0)).limits.log_probs == 1e-4
