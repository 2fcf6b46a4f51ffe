"""Backends `tensorrt` and `tensorrt-rtx`: engines of a bundle, checked one by one before anything native is asked.

A plan is native code: loading one means trusting whoever built the bundle, as with any program.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from txl_export.backends import cuda
from txl_export.backends.base import RUNS_BUNDLES, LoadedModel, check_request, reason
from txl_export.backends.cuda import Device
from txl_export.backends.device.calls import Cuda
from txl_export.backends.device.tensorrt import Loaded, TensorRTModel, check_batch
from txl_export.backends.imports import imported
from txl_export.building.messages import cause
from txl_export.building.native import Native, RefusedError, describe_engine
from txl_export.building.network import Network, check_interface
from txl_export.building.packages import PACKAGES, Package
from txl_export.building.targets import describe, runs_on
from txl_export.bundle import Bundle
from txl_export.checkpoints.base import Checkpoint
from txl_export.engines import EngineSpec, Target
from txl_export.errors import BuildError, BundleError, EnvironmentMismatch, InputError


class TensorRT:
    """One of the two packages as a backend."""

    fixed = True

    def __init__(self, package: Package) -> None:
        """Take the package."""
        self.package = package

    def refuses(self, source: Bundle | Checkpoint) -> str | None:
        """Bundles with engines of this package, version and GPU are run; no engine is loaded to find out."""
        return reason(self.fitting, source)

    def check(self, source: Any, batch_sizes: Sequence[int] = ()) -> None:
        """See `GpuBackend.check`; raises what `fitting` does, and InputError for other numbers of streams."""
        _, engines = self.fitting(source)
        for n in batch_sizes:
            check_batch(engines, n, source.path)

    def fitting(self, source: Any) -> tuple[Any, list[EngineSpec]]:
        """The imported package, and a bundle's engines that are for it and for this machine's GPU.

        Without a GPU, or without engines, nothing is imported.

        Raises:
            InputError: a checkpoint.
            BundleError: the bundle has no engines of this package, or not for every graph.
            EnvironmentMismatch: no GPU, no package, another version, or another GPU.
        """
        p = self.package
        if not isinstance(source, Bundle):
            raise InputError(
                f"backend {p.name!r} runs bundles, this is a checkpoint: export it and build engines first",
                RUNS_BUNDLES,
            )
        device = cuda.required(p.name)
        built = _of_package(source, p)
        trt = imported(p.module, p.extra, f"backend {p.name!r}", "check the NVIDIA driver")
        return trt, _whole(_for_gpu(_of_version(built, str(trt.__version__), source), device, source), source)

    def load(
        self, source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
    ) -> LoadedModel:
        """Load the engines of a bundle, each checked against the manifest.

        Raises:
            InputError: a checkpoint, or lengths that the bundle has not.
            BundleError: the bundle has no engines of this package, or not for every graph.
            EnvironmentMismatch: no GPU, no package, another version, another GPU, or an engine that cannot be
                loaded.
        """
        del threads
        trt, engines = self.fitting(source)
        cut = check_request(source.manifest, mem_len, segment_len)
        cuda_calls = Cuda()
        native = Native(trt, warn=lambda _: None, progress=lambda *_: True)
        loaded = {e.graph: _loaded(native, source, e) for e in engines}
        return TensorRTModel(source, cuda_calls, cut, mem_len, native, loaded)


def _of_package(bundle: Bundle, package: Package) -> list[EngineSpec]:
    built = [e for e in bundle.manifest.engines if e.package == package.name]
    if not built:
        command = shlex.join(["txl-export", "build", str(bundle.path), "--backend", package.name])
        raise BundleError(
            f"{bundle.path} has no engines of {package.name}: build them with '{command}'", f"no engines: {command}"
        )
    return built


def _of_version(built: Sequence[EngineSpec], version: str, bundle: Bundle) -> list[EngineSpec]:
    found = [e for e in built if e.version == version]
    if not found:
        other = built[0]
        command = other.command(bundle.path)
        raise EnvironmentMismatch(
            f"the engines of {bundle.path} were built with {other.package} {other.version}, installed is {version}: "
            f"build again with '{command}'",
            f"engines are of {other.package} {other.version}, installed is {version}: {command}",
        )
    return found


def _for_gpu(built: Sequence[EngineSpec], device: Device, bundle: Bundle) -> list[EngineSpec]:
    found = [e for e in built if runs_on(e.target, device)]
    if not found:
        targets = "; ".join(dict.fromkeys(describe(e.target) for e in built))
        command = dataclasses.replace(built[0], target=Target()).command(bundle.path)  # as it was, for this GPU
        this = f"this GPU is {device.name} ({device.capability})"
        raise EnvironmentMismatch(
            f"the engines of {bundle.path} are for {targets}, {this}: build for it with '{command}'",
            f"engines are for {targets}, {this}: {command}",
        )
    return found


def _whole(built: list[EngineSpec], bundle: Bundle) -> list[EngineSpec]:
    files, command = bundle.manifest.files, built[0].command(bundle.path)
    old = [e.file for e in built if e.graph_sha256 != files[e.graph]["sha256"]]
    if old:
        raise BundleError(f"{old[0]} was built from another graph: build again with '{command}'")
    there = {e.graph for e in built}
    missing = [g.file for g in bundle.manifest.graphs if g.file not in there]
    if missing:
        raise BundleError(
            f"{missing[0]} of {bundle.path} has no engine of this version for this GPU: build again with '{command}'",
            f"{missing[0]} has no engine: {command}",
        )
    return built


def _loaded(native: Native, bundle: Bundle, spec: EngineSpec) -> Loaded:
    """Load an engine and compare what it takes and gives with the manifest."""
    m, command = bundle.manifest, spec.command(bundle.path)
    graph = next(g for g in m.graphs if g.file == spec.graph)
    try:
        engine = native.load((bundle.path / spec.file).read_bytes())
        check_interface(Network.from_dict(describe_engine(engine)), m, graph, f"engine {spec.file}")
        _check_places(engine, spec)
    except RefusedError as e:
        raise EnvironmentMismatch(
            f"{spec.file} cannot be loaded ({cause(e.lines)}): build again with '{command}'"
        ) from None
    except BuildError as e:
        raise BundleError(f"{str(e).removesuffix(': export again')}: build again with '{command}'") from None
    return Loaded(spec, engine, tuple(m.inputs(graph)), command)


def _check_places(engine: Any, spec: EngineSpec) -> None:
    """Every tensor is read and written on the device; raises BuildError for one that shapes depend on."""
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    on_host = [n for n in names if engine.get_tensor_location(n).name != "DEVICE"]
    if on_host:
        raise BuildError(f"engine {spec.file}: it reads {on_host[0]} on the host, expected every tensor on the device")


TENSORRT, TENSORRT_RTX = (TensorRT(PACKAGES[name]) for name in ("tensorrt", "tensorrt-rtx"))
