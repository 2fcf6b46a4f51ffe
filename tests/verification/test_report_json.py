"""A verification is read back from its JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.reporting.conftest import verification
from txl_export.errors import InputError
from txl_export.files import to_json
from txl_export.verification import Finding, Report
from txl_export.verification.bisection.causes import Cause
from txl_export.verification.bisection.finding import Place
from txl_export.verification.bisection.layers import PartError
from txl_export.verification.bisection.numbers import Range
from txl_export.verification.measures import Measures
from txl_export.verification.report import Noise


def through_json(report: Report) -> Report:
    return Report.from_dict(json.loads(to_json(report.to_dict())))


def test_what_goes_in_comes_out():
    plain = verification([1e-6 * i for i in range(1, 30)])
    noisy = dataclasses.replace(plain, noise=Noise(1e-3, 1e-5), notes=("a note",), real=False)
    for report in (plain, noisy):
        assert through_json(report) == report
    assert through_json(noisy).limits.log_probs == 5e-3


def test_what_is_not_finite_fails_after_json_too():
    bad = verification([1e-6, float("nan"), float("inf")], memory=(float("inf"), 0.0))
    nll = dataclasses.replace(bad.segments[1].measures, nll=float("nan"))
    segments = (bad.segments[0], dataclasses.replace(bad.segments[1], measures=nll), bad.segments[2])
    found = through_json(dataclasses.replace(bad, segments=segments))
    assert not found.passed and found.max_abs == float("inf")
    assert found.perplexity_difference == float("inf")
    assert found.segments[0].memory[0] == float("inf")


def test_where_accuracy_is_lost_comes_out_too():
    side = Range(-1.0, 2.0, "float32", (1, 2), 1)
    place = Place("layers.1/MatMul", "MatMul", "x", "layers.1", None, side, side, float("inf"), (0, 1), (1, 2), 1e-6, 1)
    parts = (PartError("opening", "h", 0.0, 1e-6), PartError("layers.1", "h", None, 1e-6, remembered=True))
    finding = Finding(True, 3, 2, 128, "layers.1", place, Cause("overflow", "why", "what", "W", "w"), ("a",), parts)
    report = dataclasses.replace(verification([1e-2]), bisect=finding)
    found = through_json(report).bisect
    assert found is not None and found.place is not None
    assert (found.parts, found.line) == (parts, finding.line)
    assert (found.place.difference, found.place.index) == (float("inf"), (0, 1))
    assert (found.cause, found.others, found.layer) == (finding.cause, ("a",), "layer 1")


def test_a_node_whose_numbers_are_all_infinite_comes_out_too():
    side = Range(float("nan"), float("nan"), "float32", (1,), 1)
    place = Place("n", "MatMul", "x", "layers.1", None, side, side, float("inf"), (0,), (1, 2), 1e-6, 1)
    finding = Finding(True, 0, 0, 0, "layers.1", place, Cause("overflow", "why", "what", "W", "w"))
    found = through_json(dataclasses.replace(verification([1e-2]), bisect=finding)).bisect
    assert found is not None and found.text == finding.text


def test_heads_without_distributions_keep_their_gaps():
    report = verification([1e-6])
    segment = dataclasses.replace(report.segments[0], measures=Measures(1e-6, 1e-7))
    found = through_json(dataclasses.replace(report, segments=(segment,)))
    assert found.segments[0].measures.kl is None and found.perplexities is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.pop("segments"),
        lambda v: v.update(segments=[]),
        lambda v: v.update(segments=[{}]),
        lambda v: v.update(trend=None),
        lambda v: v.update(precision="int1"),
        lambda v: v["segments"][0].update(memory="x"),
        lambda v: v["segments"][0].update(max_abs=10**400),
        lambda v: v["segments"][0].update(kl=[]),
        lambda v: v["segments"][0].update(targets=-1),
        lambda v: v.update(head=1.5),
        lambda v: v.update(source=True),
        lambda v: v.update(notes=[1]),
    ],
)
def test_damage_is_one_line(damage: Any):
    value = json.loads(to_json(verification([1e-6]).to_dict()))
    damage(value)
    with pytest.raises(InputError, match="this verification is damaged"):
        Report.from_dict(value)


@pytest.mark.parametrize("value", [None, [], {}, {"format": "txl-export-verify", "schema": 0}])
def test_something_else_is_refused(value: Any):
    with pytest.raises(InputError, match="no verification of this version"):
        Report.from_dict(value)
