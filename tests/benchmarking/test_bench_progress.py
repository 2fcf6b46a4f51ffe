"""The remaining time, on a clock that the test turns."""

from __future__ import annotations

import pytest

from txl_export.benchmarking import progress
from txl_export.benchmarking.progress import Work


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def turn(seconds: float) -> None:
        now[0] += seconds

    return turn


def test_each_kind_learns_its_own_pace(clock):
    seen = []
    work = Work(lambda *s: seen.append(s))
    for kind in ("load", "round", "round", "round"):
        work.plan(kind, 10.0)
    assert work.remaining == 40
    with work.doing("loading", "load", 10.0):
        clock(20.0)
    assert work.remaining == 60  # nothing is known of rounds but that loading took twice as long as expected
    with work.doing("round 1", "round", 10.0):
        clock(5.0)
    assert work.remaining == 10
    work.say("round 2")
    assert seen == [("loading", 0.0, 40.0), ("round 1", 20.0, 80.0), ("round 2", 25.0, 35.0)]


def test_what_takes_longer_than_expected_never_ends_before_now(clock):
    seen = []
    work = Work(lambda *s: seen.append(s))
    work.plan("text", 10.0)
    with work.doing("scoring", "text", 10.0):
        clock(4.0)
        work.say("40 %")
        clock(30.0)
        work.say("80 %")
    work.say("done")
    assert seen == [("scoring", 0.0, 10.0), ("40 %", 4.0, 10.0), ("80 %", 34.0, 34.0), ("done", 34.0, 34.0)]
