"""`build`: an engine for every graph of a bundle, checked before and after, and written all together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from txl_export.backends import cuda
from txl_export.building.network import check_interface, check_network, check_size
from txl_export.building.options import Options
from txl_export.building.packages import package
from txl_export.building.process import BuilderProcess
from txl_export.building.profiles import BatchRange, check_profiles, make_profiles
from txl_export.building.report import BuildReport, Built
from txl_export.building.sizes import fixed_sizes
from txl_export.building.store import Identity, clear_leftovers, commit, exclusive, is_intact, pending
from txl_export.building.targets import choose_target, parse_capabilities, runs_on
from txl_export.bundle import WEIGHTS, Bundle, GraphSpec, Manifest
from txl_export.engines import EngineSpec
from txl_export.errors import InputError
from txl_export.files import require_space
from txl_export.number_types import OPERATOR

BATCH = "1:1:8"

Progress = Callable[[str, float, float], None]
Warn = Callable[[str], None]


def build(
    bundle: str | Path | Bundle,
    backend: str = "tensorrt",
    batch: int | str = BATCH,
    compute_capabilities: Iterable[str] = (),
    opt_level: int | None = None,
    workspace: int | None = None,
    timing_cache: str | Path | None = None,
    tf32: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    warn: Warn | None = None,
) -> BuildReport:
    """Build a TensorRT engine from every graph of a bundle, next to the graphs.

    Engines that are up to date are kept; those of the same package and target are replaced, those of others
    stay. All are written together at the end: a build that fails or is interrupted changes nothing.

    Args:
        bundle: the folder, or opened.
        backend: "tensorrt" builds for this machine's GPU, "tensorrt-rtx" on any machine.
        batch: streams of a call: one number, or "MIN:OPT:MAX" with the size to optimise for in the middle.
        compute_capabilities: GPUs to build for, such as "sm89" (tensorrt-rtx only); none for all from sm80 on.
        opt_level: how long to look for fast kernels, 0 to 5; None for the package's own.
        workspace: bytes that a kernel may use for scratch; None for the package's own.
        timing_cache: folder that keeps what was measured of kernels (tensorrt only), a file for each package,
            version, GPU and graph.
        tf32: let products in fp32 be rounded to TF32.
        force: build also what is up to date.
        progress: called with (what is being done, engines done, engines in all).
        warn: called with each line that the package warns with.

    Raises:
        InputError: options that cannot be had, or a bundle of a format of weights.
        BundleError: the bundle is damaged; engines may be, they are built anew.
        BuildError: the package refuses a graph, or gives something else than was asked for.
        EnvironmentMismatch: no package, no GPU where one is needed, no space, or the library crashed.
    """
    path = bundle.path if isinstance(bundle, Bundle) else Path(bundle)
    options = Options(
        package(backend),
        BatchRange.parse(batch),
        parse_capabilities([compute_capabilities] if isinstance(compute_capabilities, str) else compute_capabilities),
        opt_level,
        workspace,
        Path(timing_cache) if timing_cache is not None else None,
        tf32,
        force,
    )
    options.check()
    opened = Bundle.open(path, check_files=False, engines=False)
    _check_precision(opened, options.package.name)
    options.batch.check(opened.manifest.max_batch)
    with exclusive(path) as identity:
        opened = Bundle.open(path, engines=False)
        clear_leftovers(opened)
        with BuilderProcess(options.package, warn or (lambda _: None)) as process:
            return _Build(opened, options, process, progress or (lambda *_: None)).run(identity)


def _check_precision(bundle: Bundle, package: str) -> None:
    """Raise InputError for weights in a format that only ONNX Runtime multiplies."""
    if bundle.manifest.policy.weights_only:
        raise InputError(
            f"{bundle.path} holds {bundle.manifest.precision} weights for ONNX Runtime's own operator {OPERATOR}, "
            f"which {package} has not: build from a bundle of --precision fp16"
        )


class _Build:
    """One run: what is planned, and what of it is to be done."""

    def __init__(self, bundle: Bundle, options: Options, process: BuilderProcess, progress: Progress) -> None:
        self.bundle, self.options, self.process, self.progress = bundle, options, process, progress
        self.devices = cuda.devices()
        known, asked = process.capabilities, options.capabilities
        self.target = choose_target(options.package, process.version, known, asked, self.devices)

    def run(self, identity: Identity) -> BuildReport:
        """Build what is not up to date, and write it."""
        m = self.bundle.manifest
        planned = [self._plan(graph) for graph in m.graphs]
        todo = [e for e in planned if self.options.force or not self._is_there(e)]
        require_space(self.bundle.path, int(m.files[WEIGHTS]["bytes"]) * len(todo))
        with pending(self.bundle, todo) as files:
            built = [(self._build(e, file, i, len(files)), file) for i, (e, file) in enumerate(files)]
            bundle = commit(self.bundle, identity, built) if built else self.bundle
        return self._report(bundle, {e.file for e, _ in built})

    def _plan(self, graph: GraphSpec) -> EngineSpec:
        m, options = self.bundle.manifest, self.options
        profiles = make_profiles(m, graph, options.batch)
        check_profiles(profiles, m.inputs(graph))
        return EngineSpec(
            file="",
            graph=graph.file,
            package=options.package.name,
            version=self.process.version,
            target=self.target,
            profiles=profiles,
            aliases=m.aliases,
            tf32=options.tf32,
            opt_level=options.opt_level,
            workspace=options.workspace,
            graph_sha256=m.files[graph.file]["sha256"],
            weights_sha256=m.files[WEIGHTS]["sha256"],
        )

    def _is_there(self, planned: EngineSpec) -> bool:
        return any(e.key == planned.key and is_intact(self.bundle, e) for e in self.bundle.manifest.engines)

    def _build(self, planned: EngineSpec, file: Path, done: int, of: int) -> EngineSpec:
        """Build one engine into a file, checked before and after."""
        m, graph = self.bundle.manifest, _graph(self.bundle.manifest, planned)
        said = f"{graph.head}, segment {graph.segment}"
        self.progress(f"reading {said}", done, of)
        network = self.process.parse(self.bundle.path / graph.file, fixed_sizes(m))
        what = f"{graph.file} in {planned.package}"
        check_network(network, m, graph, what)
        seconds = self.process.build(
            self._options(planned),
            file,
            lambda phase, share: self.progress(f"{said}: {phase}", done + share, of),
            graph.file,
        )
        check_size(file.stat().st_size, network, what)
        if self._can_look():
            check_interface(self.process.inspect(file, graph.file), m, graph, f"the engine of {what}")
        return dataclasses.replace(planned, products=dict(network.products), seconds=round(seconds, 3))

    def _can_look(self) -> bool:
        """Whether this machine's GPU loads what is built, as far as the package knows GPUs of its capability."""
        known, gpu = self.process.capabilities, next(iter(self.devices), None)
        return gpu is not None and runs_on(self.target, gpu) and (not known or gpu.capability in known)

    def _options(self, planned: EngineSpec) -> dict[str, Any]:
        """As the process takes them."""
        cache = self.options.timing_cache
        for_machine = self.target.gpu is not None
        return {
            "profiles": {p.name: [list(shape) for shape in p.shapes] for p in planned.profiles},
            "capabilities": [] if for_machine else list(self.target.capabilities),
            "tf32": planned.tf32,
            "opt_level": planned.opt_level,
            "workspace": planned.workspace,
            "timing_cache": str((cache / _timings(planned)).resolve()) if cache else None,
        }

    def _report(self, bundle: Bundle, new: set[str]) -> BuildReport:
        m = bundle.manifest
        slots = {self._slot(graph): graph for graph in m.graphs}
        found = [(e, slots[e.slot]) for e in m.engines if e.slot in slots]
        built = [Built(e, graph, int(m.files[e.file]["bytes"]), e.file in new) for e, graph in found]
        return BuildReport(bundle, tuple(sorted(built, key=lambda b: m.graphs.index(b.graph))))

    def _slot(self, graph: GraphSpec) -> tuple[str, str, str]:
        return graph.file, self.options.package.name, self.target.label


def _graph(manifest: Manifest, engine: EngineSpec) -> GraphSpec:
    return next(g for g in manifest.graphs if g.file == engine.graph)


def _timings(engine: EngineSpec) -> str:
    return f"{engine.package}-{engine.version}-{engine.target.label}-{engine.graph_sha256[:12]}.timings"
