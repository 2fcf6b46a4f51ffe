"""Backends `tensorrt` and `tensorrt-rtx`: every check before an engine would run, in their order."""

from __future__ import annotations

import dataclasses
import enum
import sys
from types import SimpleNamespace

import pytest

from tests.building.conftest import needs_rtx
from tests.bundles import checkpoint_of, one_line
from txl_export.backends import backend, cuda
from txl_export.backends.cuda import Device
from txl_export.bundle import MANIFEST
from txl_export.errors import BundleError, EnvironmentMismatch, InputError, TxlError
from txl_export.files import write_json
from txl_export.runtime import Engine

L4, T4 = Device("NVIDIA L4", "sm89"), Device("Tesla T4", "sm75")
TYPES = {"float32": "FLOAT", "int64": "INT64"}


def refused(source, name="tensorrt-rtx", kind: type[TxlError] = EnvironmentMismatch) -> str:
    with pytest.raises(kind) as e:
        Engine.load(source, backend=name)
    return one_line(e.value)


class Logger:
    Severity = enum.Enum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING"])


def package(monkeypatch, version, engines) -> None:
    """Put a package in the place of tensorrt-rtx that loads one engine after the other."""
    given = iter(engines)

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, plan):
            engine = next(given)
            if engine is None:
                self.logger.log(Logger.Severity.ERROR, "f: Error Code 1: Serialization (it is damaged)")
            return engine

    module = SimpleNamespace(__version__=version, ILogger=Logger, Runtime=Runtime)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module)


class FakeEngine:
    """What an engine of a graph says of itself."""

    def __init__(self, manifest, graph, on_host=(), **types) -> None:
        self._on_host = on_host
        self._io = [("INPUT", t) for t in manifest.inputs(graph)] + [("OUTPUT", t) for t in manifest.outputs(graph)]
        self._types, self.num_io_tensors = types, len(self._io)

    def get_tensor_name(self, i):
        return self._io[i][1].name

    def _of(self, name):
        return next((mode, t) for mode, t in self._io if t.name == name)

    def get_tensor_mode(self, name):
        return SimpleNamespace(name=self._of(name)[0])

    def get_tensor_dtype(self, name):
        return SimpleNamespace(name=self._types.get(name, TYPES[self._of(name)[1].dtype]))

    def get_tensor_shape(self, name):
        return tuple(-1 if isinstance(n, str) else n for n in self._of(name)[1].shape)

    def get_aliased_input_tensor(self, name):
        return None

    def get_tensor_location(self, name):
        return SimpleNamespace(name="HOST" if name in self._on_host else "DEVICE")


def test_a_bundle_without_engines(folder, monkeypatch):
    monkeypatch.setattr(cuda, "devices", lambda: [L4])
    told = refused(folder, kind=BundleError)
    assert told.endswith(f"has no engines of tensorrt-rtx: build them with 'txl-export build {folder} "
                         "--backend tensorrt-rtx'")  # fmt: skip


def test_a_checkpoint():
    assert "is a checkpoint" in refused(checkpoint_of("stepping"), kind=InputError)


@needs_rtx
class TestBuilt:
    @pytest.fixture
    def manifest(self, engines):
        return engines.bundle.manifest

    @pytest.fixture(autouse=True)
    def one_gpu(self, monkeypatch):
        monkeypatch.setattr(cuda, "devices", lambda: [L4])
        monkeypatch.setattr("txl_export.backends.tensorrt.Cuda", lambda: None)  # engines are checked only

    def test_engines_of_the_other_package_do_not_count(self, engines):
        assert "has no engines of tensorrt:" in refused(engines.bundle, "tensorrt", BundleError)

    def test_an_absent_package(self, engines, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)  # what import takes for absent
        assert "pip install 'txl-export[tensorrt-rtx]'" in refused(engines.bundle)

    def test_another_version(self, engines, built, manifest, monkeypatch):
        package(monkeypatch, "9.9", [])
        told = refused(engines.bundle)
        version = manifest.engines[0].version
        assert f"built with tensorrt-rtx {version}, installed is 9.9: build again with 'txl-export build " in told
        old = tuple(dataclasses.replace(e, version="0.1") for e in manifest.engines)
        write_json(built / MANIFEST, dataclasses.replace(manifest, engines=old).to_dict())
        package(monkeypatch, version, [])
        assert f"built with tensorrt-rtx 0.1, installed is {version}" in refused(built)

    def test_no_gpu(self, engines, manifest, monkeypatch):
        package(monkeypatch, manifest.engines[0].version, [])
        monkeypatch.setattr(cuda, "devices", list)
        assert "needs an NVIDIA GPU and this machine has none" in refused(engines.bundle)

    def test_another_gpu(self, engines, manifest, monkeypatch):
        package(monkeypatch, manifest.engines[0].version, [])
        monkeypatch.setattr(cuda, "devices", lambda: [T4, L4])
        told = refused(engines.bundle)
        assert "are for portable: every GPU from sm80 on, this GPU is Tesla T4 (sm75)" in told

    def test_an_engine_that_is_not_loaded(self, engines, manifest, monkeypatch):
        package(monkeypatch, manifest.engines[0].version, [None])
        told = refused(engines.bundle)
        assert f"{manifest.engines[0].file} cannot be loaded (it is damaged): build again with" in told

    def test_an_engine_of_another_graph(self, engines, manifest, monkeypatch):
        graph = next(g for g in manifest.graphs if g.file == manifest.engines[0].graph)
        package(monkeypatch, manifest.engines[0].version, [FakeEngine(manifest, graph, key_00="HALF")])
        told = refused(engines.bundle, kind=BundleError)
        assert "input key_00 is float16" in told and "build again with 'txl-export build " in told

    def test_all_is_well(self, engines, manifest, monkeypatch):
        graphs = {g.file: g for g in manifest.graphs}
        given = [FakeEngine(manifest, graphs[e.graph]) for e in manifest.engines]
        package(monkeypatch, manifest.engines[0].version, given)
        loaded = backend("tensorrt-rtx").load(engines.bundle)
        assert loaded.name == "tensorrt-rtx" and loaded.info.mem_len == manifest.mem_len

    def test_an_engine_that_reads_on_the_host(self, engines, manifest, monkeypatch):
        graph = next(g for g in manifest.graphs if g.file == manifest.engines[0].graph)
        package(monkeypatch, manifest.engines[0].version, [FakeEngine(manifest, graph, on_host=("positions",))])
        assert "it reads positions on the host" in refused(engines.bundle, kind=BundleError)

    def test_a_graph_without_an_engine(self, engines, built, manifest, monkeypatch):
        package(monkeypatch, manifest.engines[0].version, [])
        kept = dataclasses.replace(manifest, engines=manifest.engines[1:])
        write_json(built / MANIFEST, kept.to_dict())
        told = refused(built, kind=BundleError)
        assert (
            f"{manifest.engines[0].graph} of {built} has no engine of this version for this GPU: build again with"
            in told
        )

    def test_an_engine_of_an_older_graph(self, engines, built, manifest, monkeypatch):
        package(monkeypatch, manifest.engines[0].version, [])
        old = dataclasses.replace(manifest.engines[0], graph_sha256="0" * 64)
        write_json(built / MANIFEST, dataclasses.replace(manifest, engines=(old, *manifest.engines[1:])).to_dict())
        assert f"{old.file} was built from another graph: build again with" in refused(built, kind=BundleError)

    def test_what_fits_is_not_refused(self, engines, manifest, monkeypatch):
        package(monkeypatch, manifest.engines[0].version, [])
        assert backend("tensorrt-rtx").refuses(engines.bundle) is None
        assert "no engines: txl-export build " in str(backend("tensorrt").refuses(engines.bundle))
