"""Packages that backends need: installed or not, in which version, and whether importing them works."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

COMMAND = (sys.executable, "-m", "txl_export.diagnosis.probe")
TIMEOUT = 120.0  # seconds for one import: from a cold disk torch may take a minute


@dataclass(frozen=True)
class Package:
    """A package to look for.

    Attributes:
        name: as people know it.
        module: what is imported.
        extra: the extra of this package that brings it.
        distributions: names that it is installed under.
    """

    name: str
    module: str
    extra: str
    distributions: tuple[str, ...]

    @property
    def install(self) -> str:
        """The command that brings it."""
        return f"pip install 'txl-export[{self.extra}]'"


# One line per package.
PACKAGES = {
    p.name: p
    for p in (
        Package("tensorrt", "tensorrt", "gpu", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")),
        Package("tensorrt-rtx", "tensorrt_rtx", "tensorrt-rtx", ("tensorrt-rtx", "tensorrt-rtx-cu13")),
        Package("cuda-python", "cuda.bindings.runtime", "gpu", ("cuda-bindings", "cuda-python")),
        Package("onnxruntime", "onnxruntime", "cpu", ("onnxruntime-gpu", "onnxruntime")),
        Package("torch", "torch", "export", ("torch",)),
        Package("onnx", "onnx", "export", ("onnx",)),
    )
}


@dataclass(frozen=True)
class Found:
    """What became of looking for a package.

    Attributes:
        name: of the package.
        version: None where it is not there, "" where it does not tell.
        distributions: names that it is installed under, with versions.
        problem: why it cannot be used, in a few words; None where it can.
        command: what to do about that.
        details: what else it says of itself.
    """

    name: str
    version: str | None
    distributions: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    command: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def look_for(packages: Sequence[Package]) -> dict[str, Found]:
    """Look for packages, each in a process of its own."""
    with ThreadPoolExecutor(len(packages)) as pool:
        return {f.name: f for f in pool.map(_look, packages)}


def _look(package: Package) -> Found:
    installed = {name: v for name in package.distributions if (v := _version(name)) is not None}
    answer: dict[str, Any] = _answer(package.module) if _is_there(package.module) else {"absent": True}
    if answer.get("absent"):
        return Found(package.name, None, installed, f"package '{package.name}' is not installed", package.install)
    version = str(next(iter(installed.values()), answer.get("version", "")))
    if "error" in answer:
        again = f"pip install --force-reinstall {' '.join(installed) or package.name}"
        return Found(package.name, version, installed, f"package '{package.name}' is broken: {answer['error']}", again)
    return Found(package.name, version, installed, details=answer["details"])


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_there(module: str) -> bool:
    """Whether the first name of a module is found, which takes no process."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _answer(module: str) -> dict[str, Any]:
    """What the process says; or how it ended, where it says nothing."""
    try:
        ran = subprocess.run(
            [*COMMAND, module],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing it does not end within {TIMEOUT:.0f} s"}
    last = (ran.stdout.splitlines() or [""])[-1]
    try:
        answer = json.loads(last)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) and answer else {"error": _end(ran.returncode)}


def _end(code: int) -> str:
    if code < 0 and os.name == "posix":
        return f"importing it ends the process with signal {-code} ({signal.Signals(-code).name})"
    return f"importing it ends the process with exit code {code}"
