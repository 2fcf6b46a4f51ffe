"""Backends on a GPU in a benchmark: what is refused before anything starts, and a run on the stand-in."""

from __future__ import annotations

import sys

import pytest

from tests.bundles import exported_ring, one_line
from tests.standin.fixtures import ABSENT, gpu  # noqa: F401 - a fixture
from txl_export.backends import GPU_BACKENDS
from txl_export.benchmarking import bench, process, run, to_markdown
from txl_export.benchmarking.plan import Request, plan
from txl_export.benchmarking.target import Target
from txl_export.benchmarking.worker import Job
from txl_export.errors import BundleError, EnvironmentMismatch, InputError

if not ABSENT:
    from tests.standin.plans import with_engines

CELL = {"origin": None, "overrides": {}, "threads": 1, "head": "log_probs"}


@pytest.fixture
def bundle(exported, gpu, tmp_path):  # noqa: F811
    """Layout `ring`, M = 12, with engines of the stand-in for 1 to 4 streams."""
    return with_engines(exported_ring(exported, "stepping").path, tmp_path / "bundle", batch="1:1:4")


def planned(given, backends=("tensorrt",), mem_lens=None, batch_sizes=(1,), layouts=None):
    request = Request.checked(mem_lens, (1,), batch_sizes, backends, layouts, 1, 1)
    return plan([Target.open(given)], request)


def refused(*args, kind=InputError, **kwargs) -> str:
    with pytest.raises(kind) as e:
        planned(*args, **kwargs)
    return one_line(e.value)


@pytest.mark.parametrize("name", GPU_BACKENDS)
def test_without_a_gpu_nothing_starts(hollow_bundle, checkpoint, monkeypatch, name):
    monkeypatch.setattr("txl_export.backends.cuda.devices", list)
    told = refused(hollow_bundle(), (name,), kind=EnvironmentMismatch)
    assert told.startswith(f"backend '{name}' needs an NVIDIA GPU and this machine has none")


def test_a_checkpoint_on_onnxruntime_cuda_needs_a_gpu_too(checkpoint, monkeypatch):
    monkeypatch.setattr("txl_export.backends.cuda.devices", list)
    assert "needs an NVIDIA GPU" in refused(checkpoint, ("onnxruntime-cuda",), kind=EnvironmentMismatch)


def test_engines_are_not_built_for_the_occasion(bundle, hollow_bundle, checkpoint):
    assert "is a checkpoint, tensorrt runs bundles with engines: export and build it" in refused(checkpoint)
    assert "has no engines of tensorrt: build them with " in refused(hollow_bundle("hollow"), kind=BundleError)
    told = refused(bundle, mem_lens=(12, 13))
    assert "has engines for layout 'ring', M = 12, but layout 'ring', M = 13 was asked for" in told
    assert "but layout 'kv', M = 12 was asked for" in refused(bundle, layouts=("kv",))


def test_batch_sizes_beyond_the_engines(bundle):
    assert "batch_size is 5, the engines of " in refused(bundle, batch_sizes=(4, 5))
    assert planned(bundle, mem_lens=(12, 5), batch_sizes=(1, 4))


def test_a_shorter_memory_is_a_session_on_the_same_engines(bundle):
    cell = {**CELL, "source": str(bundle.path), "backend": "tensorrt", "segment_len": 4, "batch_size": 2}
    short, whole = (Job({**cell, "mem_len": m}) for m in (5, 12))
    assert (short.fill(), whole.fill()) == (5, 12)
    assert short.memory_bytes == whole.memory_bytes  # the engine's rows, however few count
    assert short.session.positions.tolist() == [5, 5]
    for _ in range(4):
        assert short.call(short.prepare()).shape == (2, 4, short.info.config.vocab_size)
    assert short.session.positions.tolist() == [21, 21]


def test_rows_of_a_gpu_have_no_limit_of_the_host(bundle, planted_rates, monkeypatch):
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-m", "tests.standin.worker"))
    monkeypatch.setattr(run, "USUAL_TURN", run.Turn(seconds=0.0, least=3, most=3))
    table = bench([bundle], mem_lens=(5,), segment_lens=(1,), backends=("onnxruntime", "tensorrt"), rounds=1, threads=1)
    host, ours = table.rows
    assert (ours.backend, ours.layout, ours.mem_len, ours.filled) == ("tensorrt", "ring", 5, 5)
    assert host.limit is not None and ours.limit is None
    assert "NVIDIA L4 (sm89)" in to_markdown(table)
