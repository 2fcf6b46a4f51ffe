"""Which GPUs an engine is for: chosen before the build, told after it, compared before it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from txl_export.backends.cuda import Device
from txl_export.building.packages import Package
from txl_export.engines import Target
from txl_export.errors import EnvironmentMismatch, InputError

# Well-known GPUs of a compute capability, in the words people buy them by.
GPUS = {
    "sm75": "RTX 20, T4",
    "sm80": "A100, A30",
    "sm86": "RTX 30, A10, A40",
    "sm87": "Jetson Orin",
    "sm89": "RTX 40, L4, L40",
    "sm90": "H100, H200",
    "sm100": "B200",
    "sm103": "B300",
    "sm120": "RTX 50, RTX PRO 6000",
    "sm121": "GB10",
}
# TensorRT-RTX builds for every GPU from this on unless it is told capabilities.
PORTABLE_FROM = 80


def parse_capabilities(values: Iterable[str]) -> tuple[str, ...]:
    """Compute capabilities in rising order: "sm89", "SM89", "89" and "8.9" are one; raises InputError."""
    found = set()
    for value in values:
        match = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", str(value).strip().lower())
        if not match:
            raise InputError(f"compute capability {value!r} is not readable: write sm89, or several as sm80,sm89")
        found.add(f"sm{match[1]}{match[2]}")
    return tuple(sorted(found, key=_number))


def choose_target(
    package: Package, version: str, known: Sequence[str], asked: tuple[str, ...], devices: Sequence[Device]
) -> Target:
    """What to build for.

    Args:
        package: what builds.
        version: its version, for messages.
        known: the compute capabilities that it builds for.
        asked: capabilities asked for; none for the package's usual.
        devices: the GPUs of this machine.

    Raises:
        InputError: capabilities that the package does not know or cannot be told.
        EnvironmentMismatch: the package needs a GPU and there is none.
    """
    if package.ahead_of_time:
        unknown = [c for c in asked if c not in known]
        if unknown:
            raise InputError(
                f"{package.name} {version} does not build for {', '.join(unknown)}: it knows {', '.join(known)}"
            )
        return Target(None, asked)
    if asked:
        raise InputError(f"{package.name} builds for this machine's GPU only: leave out --compute-capability")
    if not devices:
        raise EnvironmentMismatch(
            f"{package.name} needs an NVIDIA GPU to build and this machine has none: build there, "
            "or use --backend tensorrt-rtx, which builds without one"
        )
    return Target(devices[0].name, (devices[0].capability,))


def describe(target: Target) -> str:
    """In words: "sm80 (A100, A30), sm89 (RTX 40, L4, L40)"."""
    if target.gpu is not None:
        return f"{target.gpu} ({', '.join(target.capabilities)})"
    if not target.capabilities:
        return f"portable: every GPU from sm{PORTABLE_FROM} on"
    return ", ".join(f"{c} ({GPUS[c]})" if c in GPUS else c for c in target.capabilities)


def runs_on(target: Target, device: Device) -> bool:
    """Whether an engine for a target is meant for a GPU."""
    if target.gpu is not None:
        return (target.gpu, target.capabilities) == (device.name, (device.capability,))
    if target.capabilities:
        return device.capability in target.capabilities
    return _number(device.capability) >= PORTABLE_FROM


def _number(capability: str) -> int:
    return int(capability.removeprefix("sm"))
