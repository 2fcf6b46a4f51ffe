"""The run: exports at once, then step after step in processes of their own until the time is up."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.plan import Case, Step, steps
from benchmarks.gpu.results import Run, Timed
from benchmarks.gpu.worker import Job
from txl_export.backends import cuda
from txl_export.backends.imports import imported
from txl_export.benchmarking import machine
from txl_export.benchmarking.process import environment
from txl_export.building.packages import PACKAGES
from txl_export.errors import EnvironmentMismatch

COMMAND = (sys.executable, "-m", "benchmarks.gpu.worker")
_CLOCKS = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")
_EXPORT_CORES, _EXPORT_SHARE = 2, 0.4  # cores of an export; the share of the time that all may take
OUT_OF_TIME = "the time was up"


class Answer(NamedTuple):
    """What a process gave: its lines, and what went wrong."""

    lines: list[dict[str, Any]]
    problem: str | None


class Campaign:
    """One run."""

    def __init__(
        self,
        cases: Sequence[Case],
        backend: str | None,
        folder: Path,
        seconds: float,
        dry: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        """Plan it; nothing runs yet.

        Args:
            cases: most important first.
            backend: of bundles; None for peers alone.
            folder: an existing one, for checkpoints and bundles.
            seconds: after which nothing goes on.
            dry: everything small, on the stand-in.
            say: takes a line for everything that is done.
        """
        self.cases, self.backend, self.folder, self.dry, self.say = cases, backend, folder, dry, say
        self._seconds, self._started = seconds, time.monotonic()
        self.run_so_far = Run({}, backend or "none", datetime.date.today().isoformat(), 0.0, dry=dry)

    @property
    def left(self) -> float:
        """Seconds."""
        return self._seconds - (time.monotonic() - self._started)

    def run(self) -> Run:
        """Do what there is time for."""
        about = machine.describe() if self.dry else machine.with_gpu(machine.describe())
        self._note(about=about, clocks={"before": clocks()})
        failed = self._prepare()
        if self.backend:
            self._bandwidth()
        for step in steps(self.cases, self.backend in PACKAGES, bool(self.backend)):
            problem = failed.get(step.case) if step.kind != "peer" else None
            problem = problem or self._take(step)
            if problem:
                self._note(missing=(*self.run_so_far.missing, (step.name, problem)))
                self.say(f"{step.name}: {problem}")
                if step.kind == "build":
                    failed[step.case] = "there are no engines"
        self._note(
            seconds=round(time.monotonic() - self._started, 1),
            clocks={**self.run_so_far.clocks, "after": clocks()},
        )
        return self.run_so_far

    def _note(self, **facts: Any) -> None:
        self.run_so_far = dataclasses.replace(self.run_so_far, **facts)

    def _prepare(self) -> dict[Case, str]:
        """Weights and exports, many at once since nothing is timed meanwhile; by case what went wrong."""
        limit = _EXPORT_SHARE * self._seconds
        firsts = list({case.model: case for case in self.cases}.values())
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        failed: dict[Case, str] = {}
        with ThreadPoolExecutor(max(1, cores // _EXPORT_CORES)) as pool:
            self.say(f"random weights of {', '.join(case.model for case in firsts)}")
            list(pool.map(lambda case: self._process(Step("weights", case), limit), firsts))
            if self.backend:
                self.say(f"exporting {len(self.cases)} bundles")
                answers = pool.map(lambda c: self._process(Step("export", c), limit, _EXPORT_CORES), self.cases)
                failed = {c: a.problem for c, a in zip(self.cases, answers, strict=True) if a.problem}
        return failed

    def _bandwidth(self) -> None:
        answer = self._process(Step("bandwidth", self.cases[0]), self.left)
        if answer.lines:
            self._note(bandwidth=answer.lines[0]["bytes_per_second"])
        else:
            self._note(missing=(*self.run_so_far.missing, ("the bandwidth", answer.problem or "")))

    def _take(self, step: Step) -> str | None:
        """Run a step and keep what it gives; returns why it gave less than it should."""
        if self.left < step.least and not self.dry:
            return OUT_OF_TIME
        self.say(f"{step.name} ({self.left:.0f} s left)")
        answer = self._process(step, self.left if self.dry else min(self.left, step.most))
        _KEEP[step.kind](self, step.case, answer.lines)
        if answer.problem and answer.lines:
            return f"{answer.problem} after {len(answer.lines)} results"
        return answer.problem

    def _keep_built(self, case: Case, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._note(built={**self.run_so_far.built, case.name: line["engines"]})

    def _keep_verified(self, case: Case, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._note(verified={**self.run_so_far.verified, case.name: line})

    def _keep_timed(self, case: Case, lines: list[dict[str, Any]]) -> None:
        rows = tuple(Timed(case, **line) for line in lines)
        self._note(timed=(*self.run_so_far.timed, *rows))

    def _process(self, step: Step, limit: float, threads: int = 0) -> Answer:
        """Run a step's process for so many seconds at most."""
        job = Job.of(step, self.backend or "", self.folder, self.dry)
        env = environment(threads) if threads else {**environment(1), "OMP_NUM_THREADS": str(machine.physical_cores())}
        with subprocess.Popen(
            [*COMMAND, job.to_json(step.kind)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=env,
            start_new_session=True,  # Ctrl-C is ours to handle
        ) as process:
            return _answer(process, max(1.0, limit))


# What is kept of a step.
_KEEP: dict[str, Callable[[Campaign, Case, list[dict[str, Any]]], None]] = {
    "build": Campaign._keep_built,
    "verify": Campaign._keep_verified,
    "ours": Campaign._keep_timed,
    "peer": Campaign._keep_timed,
}


def _answer(process: subprocess.Popen[str], limit: float) -> Answer:
    """Wait for a process, or end it when its time is up: what it has said counts."""
    late = False
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        late = True
        process.kill()
        out, err = process.communicate()
    except BaseException:
        process.kill()
        raise
    lines = [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
    problem = next((line["error"] for line in lines if "error" in line), None)
    if late:
        problem = OUT_OF_TIME
    elif process.returncode and not problem:
        said = err.strip().splitlines()
        problem = (
            f"its process died (exit code {process.returncode}): {said[-1].strip() if said else 'it said nothing'}"
        )
    return Answer([line for line in lines if "error" not in line], problem)


def clocks() -> str:
    """What nvidia-smi says of the first GPU's clocks, in one line; "" where there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader", "--id=0"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    values = [v.strip() for v in told.strip().split(",")]
    return ", ".join(f"{name} {value}" for name, value in zip(_CLOCKS, values, strict=False))


def require(backend: str) -> None:
    """Raise EnvironmentMismatch where the backend cannot run here at all, whatever the bundle."""
    if not cuda.devices():
        raise EnvironmentMismatch(
            "benchmarks/gpu.sh needs an NVIDIA GPU and this machine has none: --dry-run runs the same steps without one"
        )
    imported("torch", "export", "benchmarks/gpu.sh", "install it again")
    imported("cuda.bindings.runtime", "gpu", "benchmarks/gpu.sh", "check the NVIDIA driver")
    if backend in PACKAGES:
        package = PACKAGES[backend]
        imported(package.module, package.extra, f"backend {backend!r}", "check the NVIDIA driver")
