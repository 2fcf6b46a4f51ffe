"""Peers are checked before they are timed: in the process that is timed, on the memory that is timed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.campaign import _COMMAND
from benchmarks.peers import worker
from benchmarks.peers.check import check
from benchmarks.peers.memory import MadeMemory
from tests.bundles import one_line
from tests.helpers import tiny_config
from txl_export.benchmarking.process import Candidate, Worker
from txl_export.benchmarking.table import Cell
from txl_export.errors import ToleranceError

CONFIG, M, L, B = tiny_config(), 5, 3, 4


class Summing:
    """Its answers depend on every remembered row, on its place, and on how many calls there were."""

    memory_bytes = 4

    def __init__(self, shift=0, forgets=False, spoil=0.0):
        self.shift, self.forgets, self.spoil, self.state = shift, forgets, spoil, 0.0

    def remember(self, memory):
        rows = np.roll(memory.streams(memory.rows(1)), self.shift, axis=1)  # [B, M, d]
        self.state = (rows.sum(-1) * np.arange(1, M + 1)).sum(-1)

    def call(self, ids):
        answer = self.state[:, None, None] + np.zeros((B, L, CONFIG.vocab_size)) + ids[..., None]
        self.state = self.state if self.forgets else self.state + ids.sum(-1)
        return answer + self.spoil

    def log_probs(self, answer):
        return answer


def checked(peer, tmp_path, judge=False):
    return check(peer, MadeMemory(CONFIG, M, B), L, tmp_path / "expected.npy", judge)


def test_equal_peers_pass_and_others_do_not(tmp_path):
    assert checked(Summing(), tmp_path, judge=True) == 0
    assert checked(Summing(), tmp_path) == 0
    assert checked(Summing(spoil=9e-4), tmp_path) == pytest.approx(9e-4, rel=1e-3)
    for other in (Summing(shift=1), Summing(forgets=True), Summing(spoil=2e-3), Summing(spoil=np.nan)):
        with pytest.raises(ToleranceError) as e:
            checked(other, tmp_path)
        assert "0.001" in one_line(e.value)


def test_streams_have_memories_of_their_own():
    memory = MadeMemory(CONFIG, M, B)
    streams = memory.streams(memory.rows(0))
    assert streams.shape == (B, M, CONFIG.d_model) and streams.dtype == np.float32
    assert len({stream.tobytes() for stream in streams}) == B
    assert not np.array_equal(memory.rows(0), memory.rows(1))


def spec(shape, tmp_path, peer="eager"):
    paths = {"checkpoint": shape.checkpoint, "built": tmp_path, "scratch": tmp_path, "expected": tmp_path / "e.npy"}
    numbers = {"mem_len": M, "segment_len": L, "batch_size": B, "threads": 1}
    return {"peer": peer, "config": shape.config.to_dict(), **{n: str(p) for n, p in paths.items()}, **numbers}


def test_a_process_loads_is_checked_and_timed(shape, tmp_path):
    cell = Cell("tiny", "eager", "hidden", M, L, B, 1, "log_probs")
    with Worker(Candidate(cell, (sys.executable, *_COMMAND), spec(shape, tmp_path)), tmp_path / "log") as process:
        loaded = process.load()
        assert loaded.filled == M
        assert loaded.memory_bytes == 4 * M * 2 * 16
        assert len(process.time_round(0.0, 3, 10)) == 3
        ever, calls = process.end()
        assert ever >= calls > 0
    assert np.load(tmp_path / "e.npy").shape == (2, 2, 2, 29)


def test_a_job_of_other_numbers_is_not_timed(shape, tmp_path, monkeypatch):
    peers = {"eager": Summing(), "kv": Summing(shift=1)}
    monkeypatch.setattr(worker, "peer_module", lambda name: type("Module", (), {"load": lambda _: peers[name]}))
    assert worker.Job(spec(shape, tmp_path)).fill() == M
    with pytest.raises(ToleranceError):
        worker.Job(spec(shape, tmp_path, peer="kv")).fill()
