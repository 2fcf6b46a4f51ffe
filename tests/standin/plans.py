"""Bundles with engines of the stand-in: a genuine manifest and store, files that name the graphs."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.standin.device import DEVICE
from tests.standin.plan_files import VERSIONS, Plan
from txl_export.backends.cuda import Device
from txl_export.building.packages import PACKAGES
from txl_export.building.profiles import BatchRange, check_profiles, make_profiles
from txl_export.building.sizes import fixed_sizes
from txl_export.building.store import commit, exclusive, pending
from txl_export.building.targets import choose_target
from txl_export.bundle import WEIGHTS, Bundle, GraphSpec
from txl_export.engines import EngineSpec, Target


def with_engines(
    bundle: Path, folder: Path, package: str = "tensorrt", batch: int | str = "1:2:8", gpu: Device = DEVICE
) -> Bundle:
    """A copy of an exported bundle that has an engine of the stand-in for every graph.

    Args:
        bundle: the exported folder, which has to stay: its graphs are what the engines run.
        folder: the copy, that does not exist yet.
        package: "tensorrt" or "tensorrt-rtx".
        batch: streams of a call: one number, or "MIN:OPT:MAX".
        gpu: what "tensorrt" builds for.
    """
    shutil.copytree(bundle, folder)  # no links: onnx refuses weights that have two names
    opened, sizes = Bundle.open(folder, check_files=False), BatchRange.parse(batch)
    target = choose_target(PACKAGES[package], VERSIONS[package], (), (), [gpu])
    planned = [_spec(opened, graph, package, sizes, target) for graph in opened.manifest.graphs]
    with exclusive(folder) as identity, pending(opened, planned) as files:
        for spec, file in files:
            file.write_bytes(plan_of(opened, spec, bundle / spec.graph).to_bytes())
        return commit(opened, identity, files)


def _spec(bundle: Bundle, graph: GraphSpec, package: str, batch: BatchRange, target: Target) -> EngineSpec:
    """As `build` makes it."""
    m = bundle.manifest
    profiles = make_profiles(m, graph, batch)
    check_profiles(profiles, m.inputs(graph))
    return EngineSpec(
        file="",
        graph=graph.file,
        package=package,
        version=VERSIONS[package],
        target=target,
        profiles=profiles,
        aliases=m.aliases,
        tf32=False,
        opt_level=None,
        workspace=None,
        graph_sha256=m.files[graph.file]["sha256"],
        weights_sha256=m.files[WEIGHTS]["sha256"],
        products={m.precision: 1},
    )


def plan_of(bundle: Bundle, engine: EngineSpec, graph: Path) -> Plan:
    """What an engine's file says."""
    gpu = engine.target.gpu
    return Plan(
        graph=str(graph.resolve()),
        package=engine.package,
        version=engine.version,
        gpu=(gpu, engine.target.capabilities[0]) if gpu is not None else None,
        sizes=fixed_sizes(bundle.manifest),
        profiles={p.name: p.shapes for p in engine.profiles},
        aliases=engine.aliases,
    )
