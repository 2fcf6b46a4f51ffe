"""What each backend needs of a machine: one line per backend, in words that `conditions` decides about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txl_export.diagnosis.machine import Machine
from txl_export.diagnosis.packages import Found
from txl_export.diagnosis.probe import CUDA_PROVIDER

GPU, PROVIDER = "GPU", "CUDA provider"
_MISSING = "cannot open shared object file"  # what the loader says of a library that is not there
_MORE = "run nvidia-smi, which says more"


@dataclass(frozen=True)
class Need:
    """What a backend needs.

    Attributes:
        runs: what it is for, in a few words.
        extra: the extra of this package that brings its packages.
        conditions: names of conditions, the one that is hardest to meet first.
    """

    runs: str
    extra: str
    conditions: tuple[str, ...]


NEEDS = {
    "tensorrt": Need("engines, built for this GPU", "gpu", (GPU, "tensorrt", "cuda-python")),
    "tensorrt-rtx": Need("engines, built on any machine", "tensorrt-rtx", (GPU, "tensorrt-rtx", "cuda-python")),
    "onnxruntime-cuda": Need("bundles on the GPU", "gpu", (GPU, PROVIDER)),
    "onnxruntime": Need("bundles on the CPU", "cpu", ("onnxruntime",)),
    "typed": Need("bundles from their checkpoint, in PyTorch", "export", ("torch",)),
    "eager": Need("checkpoints in PyTorch", "export", ("torch",)),
}


@dataclass(frozen=True)
class Condition:
    """Something that backends need.

    Attributes:
        problem: what stands in the way, in a few words; None where nothing does.
        command: what to do about it; None where a package is absent, which the backend's extra brings.
    """

    problem: str | None = None
    command: str | None = None


def conditions(machine: Machine, found: Mapping[str, Found]) -> dict[str, Condition]:
    """Every condition by name: a GPU, each package, and the CUDA provider of ONNX Runtime."""
    packages = {name: _package(f) for name, f in found.items()}
    packages["cuda-python"] = _cuda_python(machine, found["cuda-python"])
    provider = _provider(machine, found["onnxruntime"])
    return {GPU: Condition(machine.gpu_problem, machine.gpu_remedy), **packages, PROVIDER: provider}


def _package(found: Found) -> Condition:
    return Condition(found.problem, None if found.version is None else found.command)


def _cuda_python(machine: Machine, found: Found) -> Condition:
    """A driver runs programs of CUDA's major versions up to its own, whatever their minor version."""
    major = (found.version or "").partition(".")[0]
    if found.problem is None and machine.cuda and major.isdigit() and int(major) > machine.cuda[0]:
        there = ".".join(map(str, machine.cuda))
        return Condition(
            f"cuda-python is for CUDA {major}, the driver runs up to {there}", "install a newer NVIDIA driver"
        )
    return _package(found)


def _provider(machine: Machine, found: Found) -> Condition:
    """ONNX Runtime built for CUDA, whose libraries are there."""
    if found.problem:
        return _package(found)
    if CUDA_PROVIDER not in found.details.get("providers", ()):
        # Packages for CPUs and for GPUs write the same folder: of two that are installed neither is whole.
        others = " ".join(found.distributions or ("onnxruntime",))
        install = "pip install 'txl-export[gpu]'"
        return Condition("the onnxruntime that is installed is for CPUs", f"pip uninstall -y {others} && {install}")
    why = found.details.get("cuda_provider")
    missing = why is not None and _MISSING in why
    if why is None or (machine.gpu_problem and not missing):
        return Condition()  # without a GPU it does not load, whatever is installed
    libraries = "pip install 'onnxruntime-gpu[cuda,cudnn]'"
    return Condition(f"ONNX Runtime's CUDA provider does not load: {why}", libraries if missing else _MORE)
