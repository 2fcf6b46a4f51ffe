"""The two packages that build engines: near-identical, one chosen by name."""

from __future__ import annotations

from dataclasses import dataclass

from txl_export.errors import InputError


@dataclass(frozen=True)
class Package:
    """A package that builds engines.

    Attributes:
        name: as `build` and manifests have it.
        module: what to import.
        extra: the extra of this package that brings it.
        ahead_of_time: whether it builds on a machine without a GPU, for compute capabilities; else it
            builds for the GPU of this machine.
        timing_cache: whether it keeps what it measured of kernels.
    """

    name: str
    module: str
    extra: str
    ahead_of_time: bool
    timing_cache: bool


# One line per package.
PACKAGES = {
    p.name: p
    for p in (
        Package("tensorrt", "tensorrt", "gpu", ahead_of_time=False, timing_cache=True),
        Package("tensorrt-rtx", "tensorrt_rtx", "tensorrt-rtx", ahead_of_time=True, timing_cache=False),
    )
}


def package(name: str) -> Package:
    """The package of a name; raises InputError for an unknown one."""
    if name not in PACKAGES:
        raise InputError(f"backend {name!r} builds no engines: use one of {', '.join(PACKAGES)}")
    return PACKAGES[name]
