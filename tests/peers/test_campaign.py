"""A run through a matrix: what is kept, what is gone on with, what time, memory and failures leave out."""

from __future__ import annotations

import pytest

from benchmarks import campaign, matrix
from benchmarks.matrix import Point
from benchmarks.section import Gap, Section
from tests.peers.conftest import PEERS
from txl_export.benchmarking.process import WorkerError
from txl_export.errors import ToleranceError

A, B, C = (Point("tiny", L, 128, 1) for L in (1, 16, 64))
JUDGE_FIRST = ("eager", "huggingface", "compile", "plain-onnx", "kv")


def test_everything_is_measured_once(bench):
    first = bench.campaign(bench.plan(A, B))
    first.run()
    assert bench.compared == [JUDGE_FIRST] * 2
    section = first.section()
    assert {(row.segment_len, row.backend) for row in section.table.rows} == {(L, p) for L in (1, 16) for p in PEERS}
    assert (section.left, section.skipped, section.failed) == ((), (), ())
    again = bench.campaign(bench.plan(A, B, C))
    assert not again.complete
    again.run()
    assert len(bench.compared) == 3
    assert again.complete


def test_an_interruption_keeps_what_is_done(bench):
    def interrupt(comparison):
        if comparison.cells[0].segment_len == B.segment_len:
            raise KeyboardInterrupt

    bench.on_compare = interrupt
    running = bench.campaign(bench.plan(A, B, C))
    with pytest.raises(KeyboardInterrupt):
        running.run()
    assert running.section().left == (B, C)
    bench.on_compare = lambda _: None
    bench.campaign(bench.plan(A, B, C)).run()
    assert len(bench.compared) == 4


def test_nothing_begins_that_would_not_end_in_time(bench, monkeypatch):
    """In a minute: one of 20 s that takes 30; then one of 30 s no longer fits, one of 10 s does."""
    D = Point("tiny", 128, 128, 1)
    expected, clock = {A: 20, B: 50, C: 30, D: 10}, [0.0]
    monkeypatch.setattr(campaign, "seconds", lambda peers, config, point, rounds: expected[point])
    monkeypatch.setattr(campaign.Artefact, "seconds", 0.0)
    monkeypatch.setattr(campaign, "_now", lambda: clock[0])
    bench.on_compare = lambda comparison: clock.__setitem__(0, clock[0] + 1.5 * expected[of(comparison)])
    running = bench.campaign(bench.plan(A, B, C, D, minutes=1.0))
    running.run()
    section = running.section()
    assert [row.segment_len for row in section.table.rows if row.backend == "kv"] == [1, 128]
    ((point, peers, reason),) = section.skipped
    assert (point, peers) == (B, PEERS) and "about 1 minutes" in reason
    assert section.left == (C,)


def of(comparison):
    cell = comparison.cells[0]
    return Point(cell.target, cell.segment_len, cell.mem_len, cell.batch_size)


def test_a_peer_that_dies_is_left_out_and_told(bench):
    def die(comparison):
        if "compile" in [c.backend for c in comparison.cells]:
            raise WorkerError("tiny on compile at M = 128, L = 1, B = 1: its process died")

    bench.on_compare = die
    running = bench.campaign(bench.plan(A))
    running.run()
    section = running.section()
    assert {row.backend for row in section.table.rows} == set(PEERS) - {"compile"}
    ((point, peers, reason),) = section.failed
    assert (point, peers) == (A, ("compile",)) and "its process died" in reason
    later = bench.campaign(bench.plan(A), Section.from_dict(section.to_dict()))
    assert later.complete and later.section().failed == section.failed


def test_without_the_judge_there_is_no_comparison(bench):
    def die(_):
        raise WorkerError("tiny on eager at M = 128, L = 1, B = 1: its process died")

    bench.on_compare = die
    running = bench.campaign(bench.plan(A, B))
    running.run()
    assert len(bench.compared) == 2
    assert [gap.peers for gap in running.section().failed] == [PEERS, PEERS]
    assert running.section().table.rows == ()


def test_other_numbers_end_the_run(bench):
    def differ(_):
        raise ToleranceError("kv differs")

    bench.on_compare = differ
    with pytest.raises(ToleranceError):
        bench.campaign(bench.plan(A, B)).run()
    assert len(bench.compared) == 1


def test_what_memory_cannot_hold_is_never_begun(bench, monkeypatch):
    monkeypatch.setattr(campaign, "ram_bytes", lambda: 1e6)
    running = bench.campaign(bench.plan(A))
    running.run()
    assert bench.compared == []
    assert running.section().skipped == (Gap(A, PEERS, running.section().skipped[0].reason),)


def test_candidates_are_told_what_the_task_costs(bench):
    seen = []
    bench.on_compare = lambda comparison: seen.extend(comparison.candidates)
    bench.campaign(bench.plan(A)).run()
    assert len({c.cost for c in seen}) == 1 and seen[0].cost.flops > 0
    assert {c.message["peer"] for c in seen} == set(PEERS)
    assert matrix.PEERS["kv"].layout == next(c.cell.layout for c in seen if c.cell.backend == "kv")
