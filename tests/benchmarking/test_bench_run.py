"""Comparisons from end to end: with planted workers, and once with real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import txl_export as txl
from txl_export.benchmarking import Table, bench, process, run, worker
from txl_export.benchmarking.table import Ratio
from txl_export.errors import EnvironmentMismatch, InputError


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    monkeypatch.setattr(run, "ROUND_SECONDS", 0.0)


@pytest.mark.slow
def test_real_workers_fill_every_row(tmp_path, checkpoint, traces):
    bundle = tmp_path / "bundle"
    txl.export(txl.load_checkpoint(checkpoint), bundle, mem_len=6, segment_lens=(1,))
    steps = []
    table = bench(
        [bundle], mem_lens=(6, 9), segment_lens=(1,), rounds=2, threads=1, progress=lambda *s: steps.append(s)
    )

    assert [(r.backend, r.layout, r.mem_len) for r in table.rows] == [
        ("eager", "hidden", 6),
        ("onnxruntime", "kv", 6),
        ("eager", "hidden", 9),
        ("onnxruntime", "kv", 9),
    ]
    for row in table.rows:
        assert (row.target, row.segment_len, row.batch_size, row.threads) == (str(bundle), 1, 1, 1)
        assert row.filled == row.mem_len
        assert [len(r) for r in row.rounds_ms] == [run.LEAST_CALLS] * 2
        assert 0 < row.p50_ms <= row.p90_ms <= row.p99_ms
        assert row.ratio is not None and 0 < row.ratio.low <= row.ratio.median <= row.ratio.high
    assert Table.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    assert [s[1] for s in steps] == sorted(s[1] for s in steps)
    assert steps[-1] == ("done", 13, 13)  # one export, two comparisons of two loads and four turns
    traces.assert_gone()


def test_planted_samples_give_the_ratio_of_the_rounds(hollow_bundle, stub_workers, traces):
    stub_workers()
    eager, own = bench([hollow_bundle()], segment_lens=(1,), rounds=3).rows
    assert own.rounds_ms == ((2.0, 2.0, 3.0),) * 3
    assert eager.rounds_ms == ((8.0, 8.0, 9.0), (16.0, 16.0, 17.0), (24.0, 24.0, 25.0))
    assert own.ratio == Ratio(8.0, 4.0, 12.0)
    traces.assert_gone()


def test_cells_take_turns(hollow_bundle, stub_workers, tmp_path):
    log = tmp_path / "turns"
    stub_workers(f"open({str(log)!r}, 'a').write(cell['backend'] + ' ')")
    bench([hollow_bundle()], segment_lens=(1,), rounds=3)
    assert log.read_text().split() == ["eager", "onnxruntime", "onnxruntime", "eager", "eager", "onnxruntime"]


def test_only_one_comparison_is_alive_at_a_time(hollow_bundle, stub_workers, traces):
    stub_workers()
    alive = []
    bench(
        [hollow_bundle(segments=("1", "2", "1-2"))],
        segment_lens=(1, 2),
        batch_sizes=(1, 3),
        rounds=1,
        progress=lambda *_: alive.append(sum(p.returncode is None for p in traces.processes)),
    )
    assert len(traces.processes) == 8
    assert max(alive) == 2


def test_equal_threads_reach_every_pool(hollow_bundle, stub_workers, tmp_path):
    log = tmp_path / "threads"
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    stub_workers(f"import os; open({str(log)!r}, 'a').write(' '.join(os.environ[n] for n in {names}) + ' ')")
    table = bench([hollow_bundle()], segment_lens=(1,), rounds=1, threads=3)
    assert log.read_text().split() == ["3"] * 4
    assert (table.threads, table.to_dict()["machine"]["threads"]) == (3, 3)


@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("print('first', file=sys.stderr); sys.exit('boom: out of luck')", r"\(exit code 1\): boom: out of luck$"),
        ("sys.exit(7)", r"\(exit code 7\): it said nothing$"),
        ("import os; os.kill(os.getpid(), 9)", r"\(SIGKILL, as when memory runs out\)"),
    ],
)
def test_a_worker_that_dies_is_one_line(hollow_bundle, stub_workers, traces, death, said):
    stub_workers(death)
    with pytest.raises(
        EnvironmentMismatch, match=r"on eager at M = 6, L = 1, B = 1: its process died " + said
    ) as caught:
        bench([hollow_bundle()], segment_lens=(1,), rounds=1)
    assert "\n" not in str(caught.value)
    traces.assert_gone()


def test_errors_made_on_purpose_keep_their_class_and_line(hollow_bundle, stub_workers, traces):
    stub_workers("""print('{"error": "InputError", "message": "give less"}', flush=True); continue""")
    with pytest.raises(InputError, match="on eager at M = 6, L = 1, B = 1: give less"):
        bench([hollow_bundle()], segment_lens=(1,), rounds=1)
    traces.assert_gone()


def test_a_real_worker_that_cannot_load_says_why(hollow_bundle, traces):
    with pytest.raises(txl.BundleError, match=r"onnxruntime at M = 6.*initial\.safetensors") as caught:
        bench([hollow_bundle()], segment_lens=(1,), backends=("onnxruntime",))
    assert "\n" not in str(caught.value)
    traces.assert_gone()


def test_interruption_ends_workers_and_removes_the_exports(checkpoint, stub_workers, traces, monkeypatch):
    def export(checkpoint, out_dir, **how):
        out_dir.mkdir()
        return type("Exported", (), {"path": out_dir})()

    def interrupt(what, done, total):
        if what.startswith("round 2"):
            assert len(traces.processes) == 2 and all(p.poll() is None for p in traces.processes)
            assert [p.name for p in traces.folder.glob("txl-bench-*/kv")] == ["kv"]
            raise KeyboardInterrupt

    monkeypatch.setattr(txl, "export", export)
    stub_workers()
    with pytest.raises(KeyboardInterrupt):
        bench([checkpoint], progress=interrupt)
    traces.assert_gone()


def test_a_worker_ends_when_its_parent_does():
    """Its stdin ends then, however the parent went."""
    ended = subprocess.run(process.COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_what_libraries_print_stays_out_of_the_answers(monkeypatch, tmp_path):
    code = (
        "import sys; from txl_export.benchmarking import worker\n"
        "class Job:\n"
        "    def __init__(self, spec): print('a library says hello')\n"
        "    def fill(self): return 5\n"
        "worker.Job = Job; worker.main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], input='{"do": "load"}\n', capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ('{"filled": 5}\n', "a library says hello\n")


class _Info:
    """As much of a ModelInfo as filling needs."""

    def __init__(self, segments, mem_len, vocab_size=256):
        from txl_export.segments import parse_segments

        self.segments, self.mem_len = parse_segments(segments), mem_len
        self.config = type("Config", (), {"vocab_size": vocab_size, "n_head": 8})()


@pytest.mark.parametrize(
    ("backend", "segments", "mem_len", "batch_size", "vocab_size", "expected"),
    [
        ("onnxruntime", ("1", "64", "1-64"), 512, 1, 256, 64),
        ("onnxruntime", ("1",), 512, 1, 256, 1),
        ("onnxruntime", ("1", "1-64"), 512, 32, 267735, 7),  # log-probs of 64 tokens would be 2 GB
        ("onnxruntime", ("1", "64"), 512, 32, 267735, 1),
        ("eager", ("1-999999",), 1600, 1, 256, 512),
        ("eager", ("1-999999",), 100, 1, 256, 100),
        ("eager", ("1-999999",), 3800, 32, 256, 34),  # attention scores are bounded
    ],
)
def test_filling_takes_the_longest_calls_that_fit(backend, segments, mem_len, batch_size, vocab_size, expected):
    job = object.__new__(worker.Job)
    job.L, job.B, job.head, job.info = 1, batch_size, "log_probs", _Info(segments, mem_len, vocab_size)
    job.engine = type("Engine", (), {"backend": backend})()
    assert job._filler()[0] == expected


def test_targets_are_given_to_heads_that_take_them(checkpoint):
    spec = {"source": str(checkpoint), "origin": None, "overrides": {}, "backend": "eager", "mem_len": 6}
    for head, seen in (("target", (2, 3)), ("target@last", (2, 1)), ("top_k", None)):
        job = worker.Job(spec | {"segment_len": 3, "batch_size": 2, "threads": 1, "head": head})
        assert job.fill() == 6
        assert seen is None or job.out.shape == seen
        assert len(job.time_round(0.0, 2, 4)) == 2
    assert np.array_equal(job.session.positions, job.session.positions[:1].repeat(2))


def test_settling_waits_for_threads_that_spin():
    busy = subprocess.run(
        [
            sys.executable,
            "-c",
            "import threading, time\n"
            "from txl_export.benchmarking.worker import settle\n"
            "end = time.monotonic() + 0.3\n"
            "def spin():\n"
            "    while time.monotonic() < end: pass\n"
            "threading.Thread(target=spin).start()\n"
            "settle(window=0.05)\n"
            "print(time.monotonic() >= end)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert busy.stdout == "True\n"


def test_settling_gives_up_on_threads_that_never_sleep(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "process_time", lambda: float(next(clock)))
    started = time.monotonic()
    worker.settle(window=0.001, limit=0.05)
    assert time.monotonic() - started < 5


def test_the_child_runs_this_very_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    paths = process._environment(2)["PYTHONPATH"].split(os.pathsep)
    assert paths == [os.path.dirname(os.path.dirname(txl.__file__)), "/elsewhere"]  # noqa: PTH120
