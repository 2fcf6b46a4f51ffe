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
from txl_export.benchmarking import Table, bench, process, run, serving, worker
from txl_export.benchmarking.blocks import Blocks
from txl_export.benchmarking.plan import Request, plan
from txl_export.benchmarking.table import Ratio
from txl_export.benchmarking.target import Target
from txl_export.errors import EnvironmentMismatch, InputError
from txl_export.layouts import DEFAULT_LAYOUT


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    monkeypatch.setattr(run, "USUAL_TURN", run.Turn(seconds=0.0, least=5, most=9))


@pytest.mark.slow
def test_real_workers_fill_every_row(tmp_path, bytes_model, planted_rates, traces):
    bundle, text = tmp_path / "bundle", tmp_path / "text"
    text.write_bytes(b"In the beginning there was nothing to remember. " * 3)
    txl.export(txl.load_checkpoint(bytes_model), bundle, mem_len=6, segment_lens=(1,), layout="kv")
    steps, how = [], {"segment_lens": (1,), "rounds": 2, "threads": 1, "text": text}
    table = bench([bundle], mem_lens=(6, 0), **how, progress=lambda *s: steps.append(s))

    assert [(r.backend, r.layout, r.mem_len) for r in table.rows] == [
        ("eager", "hidden", 6),
        ("onnxruntime", "kv", 6),
        ("eager", "hidden", 0),
        ("onnxruntime", "kv", 0),
    ]
    for row in table.rows:
        assert (row.target, row.segment_len, row.batch_size, row.threads) == (str(bundle), 1, 1, 1)
        assert row.filled == row.mem_len
        assert [len(r) for r in row.rounds_ms] == [5] * 2
        assert 0 < row.p50_ms <= row.p90_ms <= row.p99_ms
        assert 0 < row.load_ms < row.first_ms
        assert row.peak_rss > 20_000_000
        assert row.memory_bytes == row.mem_len * {"hidden": 2 * 16, "kv": 2 * 2 * 12}[row.layout] * 4
        assert row.limit is not None and row.limit.flop_rate == 4e9
        assert row.ratio is not None and 0 < row.ratio.low <= row.ratio.median <= row.ratio.high
    assert [(q.mem_len, q.segment_len) for q in table.quality] == [(6, 1), (0, 1)]
    for q in table.quality:  # scored on graphs, like the model itself
        judge = txl.Engine.load(bytes_model, "eager", mem_len=q.mem_len, threads=1)
        assert q.nats == pytest.approx(judge.score(np.frombuffer(text.read_bytes(), np.uint8), 1), rel=1e-6)
    assert Table.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    assert [s[1] for s in steps] == sorted(s[1] for s in steps)
    assert steps[-1][1] == steps[-1][2]
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
    assert len(traces.processes) == 1 + 8  # the first measures the machine
    assert max(alive) == 2


def test_a_process_starts_when_the_one_before_has_loaded(hollow_bundle, stub_workers, traces):
    """So that the time to its first answer holds no waiting."""
    stub_workers()
    started = {}
    bench(
        [hollow_bundle()],
        segment_lens=(1,),
        rounds=1,
        progress=lambda what, *_: started.setdefault(what.partition(",")[0], len(traces.processes)),
    )
    assert (started["loading eager"], started["loading onnxruntime"]) == (1, 2)  # one has measured the machine


def test_what_workers_tell_is_in_the_rows(hollow_bundle, stub_workers):
    stub_workers()
    for row in bench([hollow_bundle()], segment_lens=(1,), rounds=1).rows:
        assert (row.filled, row.load_ms, row.first_ms, row.memory_bytes, row.peak_rss) == (6, 30, 50, 1024, 5_000_000)


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


def test_a_real_worker_that_cannot_load_says_why(hollow_bundle, planted_rates, traces):
    with pytest.raises(txl.BundleError, match=r"onnxruntime at M = 6.*initial\.safetensors") as caught:
        bench([hollow_bundle()], segment_lens=(1,), backends=("onnxruntime",))
    assert "\n" not in str(caught.value)
    traces.assert_gone()


def test_interruption_ends_workers_and_removes_the_exports(checkpoint, stub_workers, traces, monkeypatch):
    def export(checkpoint, out_dir, **how):
        out_dir.mkdir(parents=True)
        return type("Exported", (), {"path": out_dir})()

    def interrupt(what, done, total):
        if what.startswith("round 2"):
            assert [p.poll() is None for p in traces.processes] == [False, True, True]
            assert [p.name for p in traces.folder.glob("txl-bench-*/0/*")] == [DEFAULT_LAYOUT]
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


# A job of another package: what `serve` asks of one, and nothing else.
JOB = """
import json, os, sys, time
from txl_export.benchmarking import serving
from txl_export.errors import InputError

class Job:
    memory_bytes = 40

    def __init__(self, spec):
        print("a library says hello")
        if spec.get("bad"):
            raise InputError("no such model")
        self.log = []

    def prepare(self):
        self.log.append("prepare")
        return len(self.log)

    def call(self, prepared):
        assert prepared == len(self.log)
        self.log.append("call")

    def fill(self):
        self.log.append("fill")
        return 5

made = []
serving.serve(lambda spec: made.append(Job(spec)) or made[-1])
print(" ".join(made[-1].log) if made else "", file=sys.stderr)
"""


def served(*messages, **environment):
    """What a process answers that serves JOB, and what it says beside."""
    ended = subprocess.run(
        [sys.executable, "-c", JOB],
        input="".join(json.dumps(m) + "\n" for m in messages),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_any_job_can_be_served():
    (loaded, first, second, ended), said = served(
        {"do": "load"},
        {"do": "round", "seconds": 0, "least": 2, "most": 9},
        {"do": "round", "seconds": 60, "least": 1, "most": 3},
        {"do": "end"},
        **{serving.STARTED: repr(time.monotonic() - 100)},
    )
    assert (loaded["filled"], loaded["memory_bytes"]) == (5, 40)
    assert 0 < loaded["load_ms"] < loaded["first_ms"]
    assert loaded["first_ms"] > 100_000  # since the process was started, not since it was loaded
    assert [len(r["samples_ms"]) for r in (first, second)] == [2, 3]
    assert ended["peak_rss"] > 5_000_000
    # What libraries print stays out of the answers. One call comes before the memory is filled, then three to
    # warm up, and two in each round that are not timed.
    calls = "prepare call "
    hello, log = sorted(said.splitlines())  # which of the two streams is written first, buffers decide
    assert (hello, log.strip()) == ("a library says hello", (calls + "fill " + calls * (3 + 2 + 2 + 2 + 3)).strip())


@pytest.mark.skipif(not serving._CLEAR.exists(), reason="only Linux forgets a peak")
@pytest.mark.parametrize(("during", "counts"), [("self.log = []", True), ('self.log.append("fill")', False)])
def test_only_filling_s_own_memory_is_not_counted(during, counts):
    """A bytearray of 300 MB that is dropped at once, while the job is made or while it is filled."""
    code = JOB.replace(during, f"{during}; bytearray(b'x' * 100) * 3_000_000")
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input='{"do": "load"}\n{"do": "end"}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    peak = json.loads(ended.stdout.splitlines()[1])
    assert (peak["peak_rss"] > 300_000_000) is counts
    assert peak["calls_rss"] < 300_000_000


def test_a_job_that_cannot_be_made_is_answered_in_a_line():
    (answer,), _ = served({"do": "load", "bad": True})
    assert answer == {"error": "InputError", "message": "no such model"}


def test_targets_are_given_to_heads_that_take_them(checkpoint):
    spec = {"source": str(checkpoint), "origin": None, "overrides": {}, "backend": "eager", "mem_len": 6}
    for head, seen in (("target", (2, 3)), ("target@last", (2, 1)), ("top_k", None)):
        job = worker.Job(spec | {"segment_len": 3, "batch_size": 2, "threads": 1, "head": head})
        job.call(job.prepare())
        assert seen is None or job.out.shape == seen
        assert job.fill() == 6
    assert np.array_equal(job.session.positions, job.session.positions[:1].repeat(2))


@pytest.mark.parametrize(("name", "mem_len"), [("stepping", 12), ("sliding", 5)])
def test_a_memory_in_place_is_timed_full_at_the_length_that_is_asked_for(exported, name, mem_len):
    """A worker loads what its calls will need until the slots repeat, and nothing else while it is timed."""
    made = exported(name, "ring", (1, 8))
    spec = {"source": str(made.path), "backend": "onnxruntime", "mem_len": mem_len, "head": "log_probs"}
    job = worker.Job(spec | {"segment_len": 8, "batch_size": 2, "threads": 1})
    loaded = set(job.engine.model._sessions)
    assert job.session.info.mem_len == mem_len and not job.session.positions.any()
    assert job.memory_bytes == 4 * 2 * 2 * 2 * 6 * (mem_len + 8 + 7)  # layers, key and value, heads of 6, S + G
    assert job.memory_bytes == job.session._streams.buffer[:, 0].nbytes
    job.call(job.prepare())
    assert job.fill() == mem_len
    for _ in range(2 * (mem_len + 8)):
        job.call(job.prepare())
    assert set(job.engine.model._sessions) == loaded
    assert np.isfinite(job.out).all()


def test_workers_read_the_checkpoint_as_it_was_read(checkpoint):
    asked = {"clamp_len": 3, "window_extra": 1}
    blocks = object.__new__(Blocks)
    source = Target.open(txl.load_checkpoint(checkpoint, overrides=asked))
    request = Request.checked((6,), (1,), (1,), ("eager",), None, rounds=1, threads=1)
    (block,) = plan([source], request)
    message = blocks._candidate(block, block.comparisons[0][0]).message
    info = worker.Job(message).info
    assert (info.config.clamp_len, info.dialect.window_extra, info.mem_len) == (3, 1, 6)


def test_settling_waits_for_threads_that_spin():
    busy = subprocess.run(
        [
            sys.executable,
            "-c",
            "import threading, time\n"
            "from txl_export.benchmarking.serving import settle\n"
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
    serving.settle(window=0.001, limit=0.05)
    assert time.monotonic() - started < 5


def test_the_child_runs_this_very_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    paths = process.environment(2)["PYTHONPATH"].split(os.pathsep)
    assert paths == [os.path.dirname(os.path.dirname(txl.__file__)), "/elsewhere"]  # noqa: PTH120
