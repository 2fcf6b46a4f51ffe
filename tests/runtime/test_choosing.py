"""`Engine.load(backend=None)`: the fastest backend that can, why not the others, and what is said of it."""

from __future__ import annotations

import dataclasses
import logging
import sys
from types import SimpleNamespace

import pytest

from tests.bundles import checkpoint_of, one_line
from txl_export.backends import BACKENDS, cuda, eager, onnxruntime, tensorrt, typed
from txl_export.backends.cuda import Device
from txl_export.bundle import Bundle
from txl_export.engines import EngineSpec, InputProfile, Target
from txl_export.errors import BundleError, EnvironmentMismatch, InputError
from txl_export.precision import PrecisionPolicy
from txl_export.runtime import Engine

L4, T4 = Device("NVIDIA L4", "sm89"), Device("Tesla T4", "sm75")
NO_GPU = "onnxruntime; not tensorrt, tensorrt-rtx, onnxruntime-cuda (no NVIDIA GPU)"


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """The GPUs of this machine: none, until a test puts some there."""
    found = []
    monkeypatch.setattr(cuda, "devices", lambda: list(found))
    return found


@pytest.fixture
def bundle(exported):
    return Bundle.open(exported("stepping", "kv", (1, 8)).path)


def with_engines(bundle, *packages):
    """The bundle with an entry for an engine of each package; there are no files, which only loading would read."""
    [graph, *_] = bundle.manifest.graphs
    target, profiles = Target("NVIDIA L4", ("sm89",)), (InputProfile("input_ids", (1, 1), (1, 1), (8, 1)),)
    made = EngineSpec(
        "", graph.file, "", "11.4", target, profiles, {}, tf32=False, opt_level=None, workspace=None,
        graph_sha256="", weights_sha256="",
    )  # fmt: skip
    specs = tuple(dataclasses.replace(made, file=f"g.{p}.engine", package=p) for p in packages)
    return dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, engines=specs))


@pytest.fixture
def package(monkeypatch):
    """package("tensorrt", "11.4") puts such a package there; a package that is None is absent."""

    def put(module, version):
        monkeypatch.setitem(sys.modules, module, version and SimpleNamespace(__version__=version))

    return put  # fmt: skip


@pytest.fixture
def untouchable(monkeypatch):
    """No package that runs engines may be imported."""

    class Refusing:
        def find_spec(self, name, path=None, target=None):
            assert not name.startswith("tensorrt"), f"{name} was imported"

    for name in [m for m in sys.modules if m.startswith("tensorrt")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])  # fmt: skip


def test_without_a_gpu_graphs_run_on_the_cpu(bundle, caplog, untouchable):
    caplog.set_level(logging.DEBUG, "txl_export")
    engine = Engine.load(bundle, threads=1)
    assert (engine.backend, engine.choice) == ("onnxruntime", NO_GPU)
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.INFO, f"{bundle.path} runs on {NO_GPU}")


def test_a_gpu_without_engines(bundle, gpus, untouchable):
    gpus.append(L4)
    found = Engine.load(bundle, threads=1).choice
    told = [f"not {name} (no engines: txl-export build {bundle.path} --backend {name})" for name in tensorrt.PACKAGES]
    told.append("not onnxruntime-cuda (onnxruntime without CUDA: pip uninstall -y onnxruntime && pip install ")
    assert found.startswith("onnxruntime; " + ", ".join(told))


def test_engines_without_a_gpu_are_missed(bundle, caplog, untouchable):
    Engine.load(with_engines(bundle, "tensorrt"), threads=1)
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, f"{bundle.path} runs on {NO_GPU}")


@pytest.mark.parametrize(
    ("installed", "gpu", "says"),
    [
        (None, L4, "package 'tensorrt' is not installed: pip install 'txl-export[gpu]'"),
        ("11.5", L4, "engines are of tensorrt 11.4, installed is 11.5: txl-export build {path} --backend tensorrt "
                     "--batch 1:1:8"),
        ("11.4", T4, "engines are for NVIDIA L4 (sm89), this GPU is Tesla T4 (sm75): txl-export build {path} "
                     "--backend tensorrt --batch 1:1:8"),
    ],
)  # fmt: skip
def test_engines_that_do_not_fit(bundle, gpus, package, caplog, installed, gpu, says):
    gpus.append(gpu)
    package("tensorrt", installed)
    made = with_engines(bundle, "tensorrt")
    engine = Engine.load(made, threads=1)
    assert engine.backend == "onnxruntime"
    assert engine.choice.startswith(f"onnxruntime; not tensorrt ({says.format(path=bundle.path)}), not tensorrt-rtx (")
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    with pytest.raises(EnvironmentMismatch):
        Engine.load(made, "tensorrt")  # what is named never falls back


def test_a_broken_package(bundle, gpus, monkeypatch, tmp_path):
    gpus.append(L4)
    (tmp_path / "tensorrt.py").write_text("raise OSError('libnvinfer.so.11:\\n no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    broken = "package 'tensorrt' is installed but cannot be imported (libnvinfer.so.11:): pip install --force-reinstall"
    assert f"not tensorrt ({broken} 'txl-export[gpu]')" in Engine.load(with_engines(bundle, "tensorrt")).choice


class Loads:
    """In place of a backend's load: gives a model of its own, or raises."""

    def __init__(self, error=None):
        self.error, self.asked = error, None

    def __call__(self, source, mem_len=None, segment_len=None, threads=None):
        self.asked = (mem_len, segment_len, threads)
        if self.error:
            raise self.error
        return SimpleNamespace(name="tensorrt", packed=None)


def fits(monkeypatch, load):
    """tensorrt refuses nothing and loads like this."""
    monkeypatch.setattr(tensorrt.TENSORRT, "refuses", lambda source: None, raising=False)
    monkeypatch.setattr(tensorrt.TENSORRT, "load", load, raising=False)


def test_engines_that_fit_are_taken_first(bundle, monkeypatch, caplog):
    fits(monkeypatch, load := Loads())
    engine = Engine.load(with_engines(bundle, "tensorrt", "tensorrt-rtx"), None, 12, 8, 1)
    assert (engine.backend, engine.choice, load.asked) == ("tensorrt", "tensorrt", (12, 8, 1))
    assert not caplog.records


def test_what_only_loading_finds_out_is_a_reason_too(bundle, monkeypatch):
    fits(monkeypatch, Loads(EnvironmentMismatch("it does not load: build again", "not of this driver")))
    found = Engine.load(with_engines(bundle, "tensorrt"), threads=1)
    assert (
        found.choice
        == "onnxruntime; not tensorrt (not of this driver), not tensorrt-rtx, onnxruntime-cuda (no NVIDIA GPU)"
    )


def test_a_damaged_engine_is_no_reason_to_go_on(bundle, monkeypatch):
    fits(monkeypatch, Loads(BundleError("it is damaged")))
    with pytest.raises(BundleError, match="it is damaged"):
        Engine.load(with_engines(bundle, "tensorrt"))


def test_a_checkpoint_runs_on_eager_and_engines_are_no_matter(caplog):
    caplog.set_level(logging.INFO, "txl_export")
    engine = Engine.load(checkpoint_of("stepping"))
    assert (engine.backend, engine.choice, caplog.records) == ("eager", "eager", [])
    with pytest.raises(InputError):
        Engine.load(checkpoint_of("stepping"), "onnxruntime")


def test_a_named_backend_is_the_choice(bundle, caplog):
    caplog.set_level(logging.DEBUG, "txl_export")
    assert (Engine.load(bundle, "onnxruntime", threads=1).choice, caplog.records) == ("onnxruntime", [])


def test_when_none_can_every_reason_is_told(bundle, package):
    package("onnxruntime", None)
    with pytest.raises(EnvironmentMismatch) as e:
        Engine.load(bundle)
    assert one_line(e.value) == (
        f"nothing here runs {bundle.path}: not tensorrt, tensorrt-rtx, onnxruntime-cuda (no NVIDIA GPU), not "
        "onnxruntime (package 'onnxruntime' is not installed: pip install 'txl-export[cpu]'), not typed (computes "
        "from the checkpoint: only with --backend typed)"
    )


def test_bfloat16_without_its_checkpoint(bundle):
    manifest = dataclasses.replace(bundle.manifest, policy=PrecisionPolicy("bf16"), judge={})
    alone = dataclasses.replace(bundle, manifest=manifest)
    assert typed.refuses(alone) == "computes from the checkpoint, which is not there"
    assert typed.refuses(dataclasses.replace(alone, judge=checkpoint_of("stepping"))) is None
    assert onnxruntime.refuses(alone) == "multiplies no bfloat16"
    assert eager.refuses(alone) == "runs checkpoints"


def test_the_fastest_stands_first():
    assert [*BACKENDS][:2] == ["tensorrt", "tensorrt-rtx"]
    assert [n for n in BACKENDS if not n.startswith("tensorrt")][-3:] == ["onnxruntime", "typed", "eager"]
