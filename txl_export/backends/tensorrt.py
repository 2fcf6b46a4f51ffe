"""Backends `tensorrt` and `tensorrt-rtx`: engines of a bundle, checked one by one before anything native is asked.

A plan is native code: loading one means trusting whoever built the bundle, as with any program.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from txl_export.backends import cuda
from txl_export.backends.base import RUNS_BUNDLES, LoadedModel, reason
from txl_export.backends.cuda import Device
from txl_export.backends.imports import imported
from txl_export.building.messages import cause
from txl_export.building.native import Native, RefusedError
from txl_export.building.network import Network, check_interface
from txl_export.building.packages import PACKAGES, Package
from txl_export.building.targets import describe, runs_on
from txl_export.bundle import Bundle
from txl_export.checkpoints.base import Checkpoint
from txl_export.engines import EngineSpec
from txl_export.errors import BuildError, BundleError, EnvironmentMismatch, InputError


class TensorRT:
    """One of the two packages as a backend."""

    def __init__(self, package: Package) -> None:
        """Take the package."""
        self.package = package

    def refuses(self, source: Bundle | Checkpoint) -> str | None:
        """Bundles with engines of this package, version and GPU are run; no engine is loaded to find out."""
        return reason(self.fitting, source)

    def fitting(self, source: Any) -> tuple[Any, list[EngineSpec]]:
        """The imported package, and a bundle's engines that are for it and for this machine's GPU.

        Without a GPU, or without engines, nothing is imported.

        Raises:
            InputError: a checkpoint.
            BundleError: the bundle has no engines of this package.
            EnvironmentMismatch: no GPU, no package, another version, or another GPU.
        """
        p = self.package
        if not isinstance(source, Bundle):
            raise InputError(
                f"backend {p.name!r} runs bundles, this is a checkpoint: export it and build engines first",
                RUNS_BUNDLES,
            )
        devices = _gpus(p)
        built = _of_package(source, p)
        trt = imported(p.module, p.extra, f"backend {p.name!r}", "check the NVIDIA driver")
        return trt, _for_gpu(_of_version(built, str(trt.__version__), source), devices[0], source)

    def load(
        self, source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
    ) -> LoadedModel:
        """Check the engines of a bundle on this machine.

        Raises:
            InputError: a checkpoint.
            BundleError: the bundle has no engines of this package.
            EnvironmentMismatch: no GPU, no package, another version, another GPU, or an engine that cannot be
                loaded; and where all is well, since this version does not run engines.
        """
        del mem_len, segment_len, threads
        trt, engines = self.fitting(source)
        native = Native(trt, warn=lambda _: None, progress=lambda *_: True)
        for engine in engines:
            _check(native, source, engine)
        raise EnvironmentMismatch(
            f"the engines of {source.path} fit this machine, but this version of txl-export builds engines and does "
            "not run them yet: use --backend onnxruntime"
        )


def _gpus(package: Package) -> Sequence[Device]:
    found = cuda.devices()
    if not found:
        raise EnvironmentMismatch(
            f"backend {package.name!r} needs an NVIDIA GPU and this machine has none: use --backend onnxruntime",
            "no NVIDIA GPU",
        )
    return found


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
        command = shlex.join(["txl-export", "build", str(bundle.path), "--backend", built[0].package])
        this = f"this GPU is {device.name} ({device.capability})"
        raise EnvironmentMismatch(
            f"the engines of {bundle.path} are for {targets}, {this}: build for it with '{command}'",
            f"engines are for {targets}, {this}: {command}",
        )
    return found


def _check(native: Native, bundle: Bundle, engine: EngineSpec) -> None:
    """Load an engine and compare what it takes and gives with the manifest."""
    m, again = bundle.manifest, f"build again with '{engine.command(bundle.path)}'"
    try:
        found = Network.from_dict(native.inspect((bundle.path / engine.file).read_bytes()))
        graph = next(g for g in m.graphs if g.file == engine.graph)
        check_interface(found, m, graph, f"engine {engine.file}")
    except RefusedError as e:
        raise EnvironmentMismatch(f"{engine.file} cannot be loaded ({cause(e.lines)}): {again}") from None
    except BuildError as e:
        raise BundleError(f"{str(e).removesuffix(': export again')}: {again}") from None


TENSORRT, TENSORRT_RTX = (TensorRT(PACKAGES[name]) for name in ("tensorrt", "tensorrt-rtx"))
