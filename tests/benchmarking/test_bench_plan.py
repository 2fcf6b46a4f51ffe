"""What is checked before anything starts, and what will be exported; nothing runs here."""

from __future__ import annotations

import json
import shlex
import sys

import numpy as np
import pytest

from tests.checkpoints.peft_adapters import low_rank, module_names, save_adapter
from tests.helpers import random_checkpoint, tiny_config
from txl_export.benchmarking import bench, machine, worker
from txl_export.benchmarking.measure import _command
from txl_export.benchmarking.plan import Request, plan
from txl_export.benchmarking.process import Source
from txl_export.benchmarking.target import Target
from txl_export.bundle import Manifest
from txl_export.checkpoints import load_checkpoint, native
from txl_export.config import Dialect
from txl_export.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    EnvironmentMismatch,
    InputError,
)
from txl_export.layouts import DEFAULT_LAYOUT


def request(mem_lens=None, segment_lens=(1,), batch_sizes=(1,), backends=("eager", "onnxruntime"), layouts=None):
    return Request.checked(mem_lens, segment_lens, batch_sizes, backends, layouts, rounds=2, threads=1)


@pytest.fixture(autouse=True)
def no_worker_starts(monkeypatch):
    """Whatever is refused here must be refused before a process is started."""

    def refuse(*args, **kwargs):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("txl_export.benchmarking.run.Worker", refuse)


def test_a_bundle_at_its_own_memory_length_is_not_exported(hollow_bundle):
    (block,) = plan([Target.open(hollow_bundle())], request())
    assert (block.mem_len, block.exports) == (6, ())
    ((eager, own),) = block.comparisons
    assert (eager.backend, eager.layout, own.backend, own.layout) == ("eager", "hidden", "onnxruntime", "kv")


def test_other_memory_lengths_and_layouts_are_exported(hollow_bundle):
    blocks = plan([Target.open(hollow_bundle())], request(mem_lens=(6, 9, 6), layouts=("kv", "hidden")))
    assert [(b.mem_len, b.exports) for b in blocks] == [(6, ("hidden",)), (9, ("kv", "hidden"))]
    assert [c.backend for c in blocks[1].comparisons[0]] == ["eager", "onnxruntime", "onnxruntime"]


def test_the_layout_is_the_bundles_own_unless_given(hollow_bundle):
    (block,) = plan([Target.open(hollow_bundle(layout="hidden"))], request(backends=("onnxruntime",)))
    assert (block.exports, block.comparisons[0][0].layout) == ((), "hidden")


def test_a_checkpoint_is_exported_unless_only_eager_runs(checkpoint):
    target = Target.open(checkpoint)
    assert [b.exports for b in plan([target], request())] == [(DEFAULT_LAYOUT,)]
    assert [b.exports for b in plan([target], request(backends=("eager",)))] == [()]


def test_comparisons_are_every_length_and_batch_size(checkpoint):
    (block,) = plan([Target.open(checkpoint)], request(segment_lens=(1, 4), batch_sizes=(1, 3)))
    found = [{(c.segment_len, c.batch_size) for c in cells} for cells in block.comparisons]
    assert found == [{(1, 1)}, {(1, 3)}, {(4, 1)}, {(4, 3)}]


def test_exports_have_the_graphs_that_the_bundle_runs_a_length_on(hollow_bundle, checkpoint):
    target = Target.open(hollow_bundle(segments=("1", "8", "1-8")))
    assert target.graphs_for("kv", [1, 8]) == ["1", "8"]
    assert target.graphs_for("kv", [5, 3]) == ["1-8"]
    assert Target.open(checkpoint).graphs_for("hidden", [1, 64]) == ["1", "64"]


def test_calls_of_a_memory_in_place_stand_for_each_other(hollow_bundle, checkpoint):
    """Its exports have what calls are cut into, and as many rows as the bundle."""
    target = Target.open(checkpoint)
    assert target.graphs_for("ring", [1]) == ["1"] and target.graphs_for("ring", [32]) == ["1", "8", "32"]
    assert target.ring_options("ring", [1, 32]) == {"segment_len": 32, "rewind": 0}
    own = Target.open(hollow_bundle(layout="ring", segments=("1", "8"), segment_len=20, rewind=3))
    assert own.graphs_for("ring", [5]) == ["1", "8"]
    assert own.ring_options("ring", [5]) == {"segment_len": 20, "rewind": 3}
    assert own.ring_options("kv", [5]) == {}


def test_a_memory_in_place_holds_every_shorter_length(hollow_bundle):
    target = Target.open(hollow_bundle(layout="ring"))
    blocks = plan([target], request(mem_lens=(6, 2, 9)))
    assert [(b.mem_len, b.exports) for b in blocks] == [(6, ()), (2, ()), (9, ("ring",))]
    assert [b.exports for b in plan([target], request(mem_lens=(2,), layouts=("ring", "kv")))] == [("kv",)]


def test_segments_that_reach_too_far_are_refused(hollow_bundle):
    path = hollow_bundle(layout="ring", segments=("1", "8"), segment_len=20)
    assert plan([Target.open(path)], request(segment_lens=(5, 20)))  # in calls of 8 and 1
    with pytest.raises(InputError, match=r"runs no segments of 21 tokens \(up to 20\)") as caught:
        plan([Target.open(path)], request(segment_lens=(21,)))
    assert "\n" not in str(caught.value)


def test_the_head_is_log_probs_or_else_the_bundles_first(hollow_bundle):
    assert Target.open(hollow_bundle("a")).head == "log_probs"
    assert Target.open(hollow_bundle("b", head="target")).head == "target"


def test_threads_none_is_all_cores(checkpoint):
    found = Request.checked(None, (1,), (1,), ("eager",), None, 1, None)
    assert found.threads == machine.physical_cores() >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mem_lens": (-1,)}, r"mem_lens holds -1, expected integers of 0 or more"),
        ({"segment_lens": (0,)}, r"segment_lens holds 0, expected integers of 1 or more"),
        ({"batch_sizes": (1.5,)}, r"batch_sizes holds 1.5"),
        ({"batch_sizes": ()}, r"batch_sizes is empty"),
        ({"backends": ()}, r"backends is empty"),
        ({"rounds": 0}, r"rounds holds 0"),
        ({"threads": 0}, r"threads holds 0"),
        ({"backends": ("eager", "tpu")}, r"backend 'tpu' is unknown: use one of tensorrt, tensorrt-rtx"),
        ({"batch_sizes": (65,), "segment_lens": (1,)}, r"batch_sizes holds 65, graphs take 1 to 64 streams"),
        ({"segment_lens": (1, 2)}, r"runs no segments of 2 tokens \(it has 1\)"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(hollow_bundle, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        bench([hollow_bundle()], **arguments)
    assert "\n" not in str(caught.value)


def test_no_target_is_refused():
    with pytest.raises(InputError, match="targets is empty"):
        bench([])


def test_batch_sizes_of_an_export_are_limited_too(checkpoint):
    with pytest.raises(InputError, match="batch_sizes holds 5000, graphs take 1 to 4096"):
        bench(checkpoint, batch_sizes=(5000,))


def test_unknown_layout_is_refused(checkpoint):
    with pytest.raises(ConfigError, match="layout 'rings' is unknown"):
        bench([checkpoint], layouts=("rings",))


def test_same_length_needs_a_memory(tmp_path):
    path = native.save(tmp_path / "same", random_checkpoint(tiny_config(same_length=True)))
    with pytest.raises(ConfigError, match="give a mem_len of 1 or more"):
        bench([path], mem_lens=(4, 0))


def test_missing_target_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        bench([tmp_path / "nowhere"])


def test_a_lost_checkpoint_names_the_options(hollow_bundle, tmp_path):
    bundle = hollow_bundle()
    (tmp_path / "checkpoint").rename(tmp_path / "moved")
    with pytest.raises(BundleError, match=r"'\.\./checkpoint'.*--keep-checkpoint.*--backends onnxruntime --mem-lens 6"):
        bench([bundle], segment_lens=(1,))
    assert plan([Target.open(bundle)], request(backends=("onnxruntime",)))  # which needs none


def test_another_checkpoint_in_its_place_is_noticed(hollow_bundle, checkpoint):
    bundle = hollow_bundle()
    native.save(checkpoint, random_checkpoint(tiny_config(n_layer=3), Dialect()))
    with pytest.raises(BundleError, match=r"n_layer 3, .* was made with 2"):
        bench([bundle], segment_lens=(1,))


def test_the_judges_overrides_are_applied(hollow_bundle):
    path = hollow_bundle(judge={"path": "../checkpoint", "origin": "native", "overrides": {"clamp_len": 3}})
    with pytest.raises(BundleError, match="clamp_len 3"):  # the hollow bundle itself says -1
        Target.open(path).checkpoint()


def test_the_judges_adapters_are_merged(hollow_bundle, checkpoint, tmp_path):
    base = load_checkpoint(checkpoint)
    folder = save_adapter(tmp_path / "adapter", low_rank(base.config, module_names(base.config)))
    adapter = load_checkpoint(checkpoint, adapter=folder).adapters[0].to_dict()
    judge = {"path": "../checkpoint", "origin": "native", "overrides": {}, "adapters": [adapter]}
    path = hollow_bundle(judge=judge)
    target = Target.open(path)
    assert target.source.adapters == (folder,)
    found = target.checkpoint().weights["layers.0.attention.W_q"]
    assert not np.array_equal(found, base.weights["layers.0.attention.W_q"])
    spec = {"source": str(checkpoint), "origin": None, "overrides": {}, "adapters": [str(folder)]}
    assert np.array_equal(worker._open(spec).weights["layers.0.attention.W_q"], found)
    native.save(path / "checkpoint", base)  # a copy in the bundle would have it merged
    assert Target.open(path).source.adapters == ()
    hollow = path / "manifest.json"
    changes = ({"path": 5}, {"path": "a\0"}, {"modules": "all"}, {"ranks": ["8"]}, {"replaced": [None]})
    for damaged in (5, [5], [{}], *([adapter | change] for change in changes)):
        with pytest.raises(BundleError, match="damaged"):
            Manifest.from_dict(json.loads(hollow.read_text()) | {"judge": judge | {"adapters": damaged}}, hollow)


def test_a_loaded_checkpoint_is_timed_with_its_overrides(checkpoint):
    asked = {"mem_len": 9, "clamp_len": 3, "window_extra": 1, "same_length": True}
    target = Target.open(load_checkpoint(checkpoint, overrides=asked))
    assert (target.mem_len, target.config.clamp_len, target.dialect.window_extra) == (9, 3, 1)
    assert target.source == Source(checkpoint, "native", asked)
    assert target.checkpoint().config == target.config
    assert target.digest != Target.open(checkpoint).digest
    said = shlex.split(_command([target], request(), 0))
    assert said[2] == str(checkpoint) and said[-7:-2] == ["--mem-len", "9", "--clamp-len", "3", "--set"]
    assert said[-2:] == ["window_extra=1", "--same-length"]
    with pytest.raises(InputError, match="in memory cannot be timed"):
        bench(random_checkpoint(tiny_config()))


def test_a_kept_checkpoint_is_native_whatever_its_origin(hollow_bundle, checkpoint):
    path = hollow_bundle(judge={"path": "gone", "origin": "huggingface", "overrides": {}})
    checkpoint.rename(path / "checkpoint")
    assert Target.open(path).checkpoint().origin == "native"


@pytest.mark.parametrize(("package", "extra"), [("torch", "export"), ("onnxruntime", "cpu")])
def test_missing_package_names_its_extra(hollow_bundle, monkeypatch, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentMismatch, match=rf"'{package}'.*txl-export\[{extra}\]"):
        bench([hollow_bundle()])


def test_exporting_without_torch_names_its_extra(hollow_bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentMismatch, match=r"txl-export\[export\]"):
        bench([hollow_bundle()], mem_lens=(9,), segment_lens=(1,), backends=("onnxruntime",))


def test_machine_names_cpu_and_versions(tmp_path, monkeypatch):
    found = machine.describe()
    assert set(found["versions"]) >= {"python", "numpy", "txl-export"}
    assert 1 <= found["cores"] <= found["logical_cpus"]
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "absent")
    assert machine.describe()["cpu"]


def test_threads_of_one_core_count_once(tmp_path, monkeypatch):
    block = "processor : {}\nphysical id : 0\ncore id : {}\nmodel name : Some CPU\n"
    (tmp_path / "cpuinfo").write_text("\n".join(block.format(i, i // 2) for i in range(4)))
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_usable_cpus", lambda: {0, 1, 2})
    assert (machine.physical_cores(), machine.describe()["cpu"]) == (2, "Some CPU")
