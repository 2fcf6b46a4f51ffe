"""Backends `tensorrt` and `tensorrt-rtx`: engines of a bundle, checked one by one before anything native is asked.

A plan is native code: loading one means trusting whoever built the bundle, as with any program.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from txl_export.backends import cuda
from txl_export.backends.base import LoadedModel, check_request
from txl_export.backends.cuda import Device
from txl_export.backends.device.calls import Cuda
from txl_export.backends.device.tensorrt import Loaded, TensorRTModel
from txl_export.building.messages import cause
from txl_export.building.native import Native, RefusedError, describe_engine
from txl_export.building.network import Network, check_interface
from txl_export.building.packages import PACKAGES, Package
from txl_export.building.targets import describe, runs_on
from txl_export.bundle import Bundle
from txl_export.checkpoints.base import Checkpoint
from txl_export.engines import EngineSpec
from txl_export.errors import BuildError, BundleError, EnvironmentMismatch, InputError, missing_extra
from txl_export.files import first_line


class TensorRT:
    """One of the two packages as a backend."""

    def __init__(self, package: Package) -> None:
        """Take the package."""
        self.package = package

    def accepts(self, source: Bundle | Checkpoint) -> bool:
        """Never of itself: it has to be asked for until it runs what it loads."""
        del source
        return False

    def load(
        self, source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
    ) -> LoadedModel:
        """Load the engines of a bundle, each checked against the manifest.

        Raises:
            InputError: a checkpoint, or lengths that the bundle has not.
            BundleError: the bundle has no engines of this package, or not for every graph.
            EnvironmentMismatch: no package, another version, no GPU, another GPU, or an engine that cannot be
                loaded.
        """
        del threads
        name = self.package.name
        if not isinstance(source, Bundle):
            raise InputError(f"backend {name!r} runs bundles, this is a checkpoint: export it and build engines first")
        built = [e for e in source.manifest.engines if e.package == name]
        if not built:
            command = f"txl-export build {source.path} --backend {name}"
            raise BundleError(f"{source.path} has no engines of {name}: build them with '{command}'")
        trt = self._imported()
        engines = _for_gpu(_of_version(built, str(trt.__version__), source), cuda.devices(), source)
        cut = check_request(source.manifest, mem_len, segment_len)
        cuda_calls = Cuda()
        native = Native(trt, warn=lambda _: None, progress=lambda *_: True)
        loaded = {e.graph: _loaded(native, source, e) for e in engines}
        missing = [g.file for g in source.manifest.graphs if g.file not in loaded]
        if missing:
            raise BundleError(f"{missing[0]} has no engine: build again with '{engines[0].command(source.path)}'")
        return TensorRTModel(source, cuda_calls, cut, mem_len, native, loaded)

    def _imported(self) -> Any:
        p = self.package
        try:
            return importlib.import_module(p.module)
        except ModuleNotFoundError as e:
            if e.name == p.module:
                raise missing_extra(p.module, p.extra, f"backend {p.name!r}") from None
            raise self._broken(e) from None
        except (ImportError, OSError, RuntimeError) as e:  # libraries or the driver are not there
            raise self._broken(e) from None

    def _broken(self, e: Exception) -> EnvironmentMismatch:
        p = self.package
        return EnvironmentMismatch(
            f"the package '{p.module}' is installed but cannot be imported ({first_line(e)}): "
            f"pip install --force-reinstall 'txl-export[{p.extra}]', and check the NVIDIA driver"
        )


def _of_version(built: Sequence[EngineSpec], version: str, bundle: Bundle) -> list[EngineSpec]:
    found = [e for e in built if e.version == version]
    if not found:
        other = built[0]
        raise EnvironmentMismatch(
            f"the engines of {bundle.path} were built with {other.package} {other.version}, installed is {version}: "
            f"build again with '{other.command(bundle.path)}'"
        )
    return found


def _for_gpu(built: Sequence[EngineSpec], devices: Sequence[Device], bundle: Bundle) -> list[EngineSpec]:
    if not devices:
        raise EnvironmentMismatch(
            f"the engines of {bundle.path} need an NVIDIA GPU and this machine has none: use --backend onnxruntime"
        )
    device = devices[0]
    found = [e for e in built if runs_on(e.target, device)]
    if not found:
        targets = "; ".join(dict.fromkeys(describe(e.target) for e in built))
        raise EnvironmentMismatch(
            f"the engines of {bundle.path} are for {targets}, this GPU is {device.name} ({device.capability}): "
            f"build for it with 'txl-export build {bundle.path} --backend {built[0].package}'"
        )
    return found


def _loaded(native: Native, bundle: Bundle, spec: EngineSpec) -> Loaded:
    """Load an engine and compare what it takes and gives with the manifest."""
    m, command = bundle.manifest, spec.command(bundle.path)
    graph = next(g for g in m.graphs if g.file == spec.graph)
    try:
        engine = native.load((bundle.path / spec.file).read_bytes())
        check_interface(Network.from_dict(describe_engine(engine)), m, graph, f"engine {spec.file}")
    except RefusedError as e:
        raise EnvironmentMismatch(
            f"{spec.file} cannot be loaded ({cause(e.lines)}): build again with '{command}'"
        ) from None
    except BuildError as e:
        raise BundleError(f"{str(e).removesuffix(': export again')}: build again with '{command}'") from None
    return Loaded(spec, engine, tuple(m.inputs(graph)), command)


TENSORRT, TENSORRT_RTX = (TensorRT(PACKAGES[name]) for name in ("tensorrt", "tensorrt-rtx"))
