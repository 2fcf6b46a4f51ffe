"""The machine that figures come from: its CPU, its cores and the versions of what ran."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from txl_export._version import __version__
from txl_export.backends import cuda

_CPUINFO = Path("/proc/cpuinfo")
# Some packages come under several names, with or without a GPU.
_PACKAGES = {"numpy": ("numpy",), "onnxruntime": ("onnxruntime", "onnxruntime-gpu"), "torch": ("torch",)}
_GPU_PACKAGES = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt-rtx": ("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12"),
    "cuda-python": ("cuda-python", "cuda-bindings"),
}


def describe() -> dict[str, Any]:
    """CPU model, cores that may be used, system and versions, JSON-ready; nothing is imported for it."""
    return {
        "cpu": _cpu_model(),
        "cores": physical_cores(),
        "logical_cpus": len(_usable_cpus()),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }


def with_gpu(about: dict[str, Any]) -> dict[str, Any]:
    """What `describe` gave, with the GPU that is used and the versions of what runs there; the same without a GPU."""
    found = cuda.devices()
    if not found:
        return about
    gpu = f"{found[0].name} ({found[0].capability})"
    return {**about, "gpu": gpu, "versions": {**about["versions"], **_installed(_GPU_PACKAGES)}}


def load_average() -> float:
    """Processes that ran or waited for a core during the last minute; 0 where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what may run a model; absent packages are left out."""
    return {"python": platform.python_version(), "txl-export": __version__, **_installed(_PACKAGES)}


def _installed(packages: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    found = {}
    for package, names in packages.items():
        for name in names:
            try:
                found[package] = metadata.version(name)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def physical_cores() -> int:
    """Cores that this process may use, each counted once however many threads it offers."""
    usable = _usable_cpus()
    places = {
        (block.get("physical id", "0"), block["core id"])
        for block in _cpuinfo()
        if "core id" in block and int(block.get("processor", -1)) in usable
    }
    return len(places) or len(usable)


def _usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _cpu_model() -> str:
    names = (block["model name"] for block in _cpuinfo() if "model name" in block)
    return next(names, "") or platform.processor() or platform.machine() or "unknown"


def _cpuinfo() -> list[dict[str, str]]:
    """Linux's list of CPUs, one dict for each; empty elsewhere."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    blocks = [[line.partition(":") for line in block.splitlines()] for block in text.split("\n\n")]
    return [{key.strip(): value.strip() for key, _, value in block} for block in blocks]
