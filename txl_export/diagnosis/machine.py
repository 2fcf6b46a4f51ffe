"""The machine itself: system, CPU, memory, GPUs and their driver. No package is asked."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from txl_export.backends import cuda
from txl_export.benchmarking import machine as cpu
from txl_export.room import machine_bytes

_PCI = Path("/sys/bus/pci/devices")
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # vendor of PCI devices; the class of those that compute or show


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use.

    Attributes:
        name: its model.
        capability: compute capability, as "sm90".
        memory: bytes.
        mig: whether it is a part of one.
    """

    name: str
    capability: str
    memory: int
    mig: bool


@dataclass(frozen=True)
class Machine:
    """What a machine has.

    Attributes:
        system: "Linux 6.1 x86_64".
        python: version.
        cpu: model.
        cores: that this process may use.
        logical_cpus: threads of those cores.
        memory: bytes of main memory that this process may have; None where the system does not tell.
        gpus: NVIDIA GPUs that the driver shows.
        driver: version of the NVIDIA driver; None where it does not tell or there is none.
        cuda: newest version of CUDA that the driver runs, (13, 0); None without a driver.
        gpu_problem: why no GPU can be used; None where one can.
        gpu_remedy: what to do about that.
    """

    system: str
    python: str
    cpu: str
    cores: int
    logical_cpus: int
    memory: int | None
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    gpu_problem: str | None = None
    gpu_remedy: str | None = None


def look_at_machine() -> Machine:
    """Look at this machine."""
    told = cpu.describe()
    devices, driver = cuda.devices(), cuda.driver()
    memory = driver.memory if driver else ()
    gpus = tuple(Gpu(d.name, d.capability, m, " MIG " in d.name) for d, m in zip(devices, memory, strict=False))
    problem, remedy = (None, None) if gpus else _why_no_gpu(driver)
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpu=told["cpu"],
        cores=told["cores"],
        logical_cpus=told["logical_cpus"],
        memory=machine_bytes(),
        gpus=gpus,
        driver=_driver_version(),
        cuda=driver.cuda if driver else None,
        gpu_problem=problem,
        gpu_remedy=remedy,
    )


def _why_no_gpu(driver: cuda.Driver | None) -> tuple[str, str]:
    if driver is not None:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = f", CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
        return f"the NVIDIA driver shows no GPU ({driver.problem}{shown})", "run nvidia-smi, which says more"
    if _has_nvidia_card():
        return "an NVIDIA GPU without a driver", "install the NVIDIA driver; in a container start it with --gpus all"
    return "no NVIDIA GPU", "a machine with an NVIDIA GPU"


def _has_nvidia_card() -> bool:
    """Whether Linux sees such a card; False elsewhere."""
    return any(_text(d / "vendor") == _NVIDIA and _text(d / "class").startswith(_DISPLAY) for d in _PCI.glob("*"))


def _driver_version() -> str | None:
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _text(_DRIVER_VERSION))
    return found[1] if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
