"""The benchmark on a GPU: its plan, its run with planted processes, and what it measures, without a GPU."""

from __future__ import annotations

import io
import json
import subprocess

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import ours, peers, plan, run, worker
from benchmarks.gpu.plan import COMPILED, EAGER, OURS, OURS_DIRECT, PEERS, Case, full_cases, steps, tiny_cases
from benchmarks.gpu.run import OUT_OF_TIME, Answer, Campaign
from benchmarks.gpu.timing import DRY
from benchmarks.gpu.worker import Job
from tests.bundles import exported_ring
from tests.standin.fixtures import ABSENT, gpu  # noqa: F401 - a fixture
from txl_export.checkpoints import Checkpoint, native
from txl_export.errors import ToleranceError
from txl_export.random_weights import random_weights


def test_the_most_important_comes_first():
    kinds = [(s.kind, s.case.precision, s.case.mem_len, s.way) for s in steps(full_cases())]
    assert [k[0] for k in kinds[:3]] == ["build", "verify", "ours"] and kinds[2][1:3] == ("fp16", 1600)
    assert [k[3] for k in kinds[3:6]] == list(PEERS)
    assert {k[2] for k in kinds} == {640, 1600, 3800}
    assert [k[3] for k in kinds[-2:]] == [COMPILED] * 2  # the other compilations, which take longest
    halves = [i for i, k in enumerate(kinds) if k[:2] == ("ours", "fp16")]
    assert max(halves) < min(i for i, k in enumerate(kinds) if k[:2] == ("ours", "fp32"))


def test_the_matrix_is_whole():
    base = [c for c in full_cases() if c.model == plan.BASE_MODEL]
    assert {(c.precision, c.mem_len) for c in base} == {(p, m) for p in ("fp16", "fp32") for m in (640, 1600, 3800)}
    for case in base:
        assert set(case.points) == {(n, b) for n in (1, 64, 128) for b in (1, 8, 32)}
        assert [b for _, b in case.points[:3]] == [1, 1, 1]


def test_what_cannot_be_built_or_run_is_left_out_of_the_plan():
    assert "build" not in {s.kind for s in steps(tiny_cases(), engines=False)}
    assert {s.kind for s in steps(tiny_cases(), ours=False)} == {"peer"}


def test_a_job_travels_to_its_process(tmp_path, monkeypatch):
    got = []
    monkeypatch.setitem(worker.KINDS, "ours", lambda job: got.append(job) or [{"one": 1}])
    step = next(s for s in steps(tiny_cases()) if s.kind == "ours")
    job = Job.of(step, "tensorrt", tmp_path, dry=False)
    said = io.StringIO()
    worker.main(job.to_json("ours"), said)
    assert got == [job]
    assert json.loads(said.getvalue()) == {"one": 1}


def test_what_goes_wrong_on_purpose_is_a_line(tmp_path):
    job = Job.of(next(steps(tiny_cases())), "tensorrt", tmp_path, dry=False)
    said = io.StringIO()
    worker.main(job.to_json("verify"), said)
    assert "error" in json.loads(said.getvalue())


class Planted(Campaign):
    """A campaign whose processes say what they are told to."""

    answers: dict[str, Answer]
    asked: list[str]

    def _process(self, step, limit, threads=0):
        self.asked.append(step.name)
        row = {
            "way": step.way or OURS,
            "segment_len": 1,
            "batch_size": 1,
            "wall_ms": [1.0],
            "device_ms": [],
            "off": None,
        }
        usual = {
            "bandwidth": [{"bytes_per_second": 1e12}],
            "build": [{"engines": [["1", 10, 1.0, "fp16"]]}],
            "verify": [{"passed": True, "max_abs": 0.1, "segments": 3, "wraps": 2.5}],
        }
        return self.answers.get(step.name, Answer(usual.get(step.kind, [row]), None))


def planted(tmp_path, seconds=1000.0, **answers) -> Planted:
    made = Planted(full_cases()[:2], "tensorrt", tmp_path, seconds, say=lambda _: None)
    made.asked, made.answers = [], answers
    return made


def test_everything_that_is_found_is_kept(tmp_path):
    found = planted(tmp_path).run()
    assert [t.way for t in found.timed] == [OURS, *PEERS, OURS] and not found.missing
    assert found.bandwidth == 1e12 and len(found.built) == len(found.verified) == 2


def test_a_step_that_fails_is_told_and_the_rest_goes_on(tmp_path):
    first = full_cases()[0].name
    made = planted(tmp_path, **{f"build of {first}": Answer([], "no kernel")})
    found = made.run()
    assert found.missing[:3] == (
        (f"build of {first}", "no kernel"),
        (f"verify of {first}", "there are no engines"),
        (f"ours of {first}", "there are no engines"),
    )
    assert f"ours of {first}" not in made.asked and f"{EAGER} of {first}" in made.asked
    assert [t.way for t in found.timed] == [*PEERS, OURS]


def test_what_the_time_does_not_reach_is_told(tmp_path):
    found = planted(tmp_path, seconds=1.0).run()
    assert not found.timed and {why for _, why in found.missing} == {OUT_OF_TIME, "there are no engines"}
    assert len(found.missing) == len(list(steps(full_cases()[:2])))


class Process:
    """A process that has said a line and a half and hangs until it is killed."""

    returncode = -9

    def __init__(self):
        self.killed = False

    def communicate(self, timeout=None):
        if not self.killed:
            raise subprocess.TimeoutExpired("x", timeout)
        return '{"a": 1}\n{"b": ', ""

    def kill(self):
        self.killed = True


def test_a_process_whose_time_is_up_is_ended_and_what_it_said_counts():
    process = Process()
    assert run._answer(process, 1.0) == Answer([{"a": 1}], OUT_OF_TIME)
    assert process.killed


def test_without_a_gpu_one_line_and_exit_code_3(monkeypatch, capsys):
    monkeypatch.setattr("txl_export.backends.cuda.devices", list)
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    assert command.main() == 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "needs an NVIDIA GPU and this machine has none: --dry-run " in told


@pytest.fixture
def case() -> Case:
    return tiny_cases()[0]


@pytest.mark.skipif(ABSENT, reason="the stand-in needs cuda-python")
def test_a_bundle_is_timed_with_graphs_and_without(exported, gpu, tmp_path):  # noqa: F811
    from tests.standin.plans import with_engines

    bundle = with_engines(exported_ring(exported, "stepping").path, tmp_path / "bundle").path
    case = Case("stepping", "fp32", 12, (1, 4), (2,))
    before = gpu.calls["cudaGraphLaunch"]
    rows = list(ours.measure(case, bundle, "tensorrt", DRY))
    assert [(r["way"], r["segment_len"], r["batch_size"]) for r in rows] == [
        (way, n, 2) for n in (1, 4) for way in (OURS, OURS_DIRECT)
    ]
    assert all(len(r["wall_ms"]) == len(r["device_ms"]) == DRY.least for r in rows)
    assert gpu.calls["cudaGraphLaunch"] > before
    assert ours.bandwidth(1 << 16)["bytes_per_second"] > 0


@pytest.mark.parametrize("way", PEERS)
def test_ways_of_pytorch_give_eagers_numbers(tmp_path, case, way):
    folder = checkpoint(tmp_path, case)
    rows = list(peers.measure(way, case, folder, DRY))
    assert [(r["segment_len"], r["batch_size"]) for r in rows] == list(case.points)
    assert all(r["off"] <= 1e-2 and len(r["wall_ms"]) == DRY.least for r in rows)


def test_a_way_that_forgets_is_not_timed(tmp_path, case, monkeypatch):
    monkeypatch.setitem(peers.WAYS, EAGER, lambda reference, ids: lambda now: reference.eager(now) + 1)
    with pytest.raises(ToleranceError, match="differ from eager's by"):
        list(peers.measure(EAGER, case, checkpoint(tmp_path, case), DRY))


def checkpoint(folder, case):
    config, dialect = plan.model_of(case.model)
    return native.save(folder / "checkpoint", Checkpoint(config, dialect, random_weights(config, 0)))


def test_memory_in_place_is_the_next_calls(tmp_path, case):
    """The static ways read what they wrote: a second call equals eager's second."""
    import torch

    module = peers.HiddenMemory(checkpoint(tmp_path, case))
    torch.manual_seed(0)
    one, other = (peers.Reference(module, case.mem_len, 1) for _ in range(2))
    for a, b in zip(one.mems, other.mems, strict=True):
        a.copy_(b)
    ids = torch.from_numpy(np.array([[1, 2, 3]]))
    with torch.no_grad():
        step = peers.graphed(other, ids)
        for _ in range(3):
            assert torch.allclose(one.eager(ids), step(ids), atol=1e-5)
