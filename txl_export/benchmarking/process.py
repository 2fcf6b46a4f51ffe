"""The parent's side of a worker: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import txl_export
from txl_export import errors
from txl_export.benchmarking.serving import STARTED
from txl_export.benchmarking.table import Cell
from txl_export.errors import EnvironmentMismatch, TxlError

COMMAND = (sys.executable, "-m", "txl_export.benchmarking.worker")


class WorkerError(EnvironmentMismatch):
    """A worker died: the machine ran out of memory, or something below this package failed."""


@dataclass(frozen=True)
class Source:
    """What a worker loads: a bundle's folder, or a checkpoint and how to read it."""

    path: Path
    origin: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    adapters: tuple[Path, ...] = ()


class Cost(NamedTuple):
    """What a call must read and compute at least: bytes, and FLOPs of matrix products."""

    bytes: int
    flops: int


@dataclass(frozen=True, eq=False)
class Candidate:
    """A cell and the process that runs it.

    Attributes:
        cell: what is timed.
        command: starts a process that calls `txl_export.benchmarking.serving.serve`.
        message: what its job is made of, JSON-ready; see `serve`.
        cost: of one call, by the best algorithm for the task; None where nobody knows.
    """

    cell: Cell
    command: tuple[str, ...]
    message: dict[str, Any]
    cost: Cost | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Candidates that are alive together and take turns.

    Attributes:
        candidates: in the order of their rows.
        base: the backend that the others' ratios are taken against.
    """

    candidates: tuple[Candidate, ...]
    base: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The candidates' cells."""
        return tuple(c.cell for c in self.candidates)


class Loaded(NamedTuple):
    """What a worker says of a load; see `Row`."""

    filled: int
    load_ms: float
    first_ms: float
    memory_bytes: int


class Peak(NamedTuple):
    """The most bytes of memory that a worker held: ever, and while it answered calls, its model loaded."""

    ever: int
    calls: int


class Worker:
    """A process that holds one cell; a context manager that ends it."""

    def __init__(self, candidate: Candidate, log: Path) -> None:
        """Start the process; `log` takes what it says on stderr."""
        self.candidate, self.cell, self._log = candidate, candidate.cell, log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                candidate.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                env=environment(self.cell.threads),
                start_new_session=True,  # Ctrl-C is the parent's to handle, which then ends the workers
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load(self) -> Loaded:
        """Load the cell, answer once and fill the memory, right after the start. Raises TxlError."""
        answer = self._ask({**self.candidate.message, "do": "load"})
        return Loaded(**{name: answer[name] for name in Loaded._fields})

    def time_round(self, seconds: float, least: int, most: int) -> list[float]:
        """Time calls, one after the other; returns their milliseconds. Raises TxlError."""
        answer = self._ask({"do": "round", "seconds": seconds, "least": least, "most": most})
        return [float(ms) for ms in answer["samples_ms"]]

    def end(self) -> Peak:
        """Let the process end; returns the memory that it held. Raises TxlError."""
        answer = self._ask({"do": "end"})
        return Peak(int(answer["peak_rss"]), int(answer["calls_rss"]))

    def close(self) -> None:
        """End the process, whatever it is doing: it has nothing to lose."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a line that was never read
                pipe.close()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            print(json.dumps(message), file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise self._death()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = getattr(errors, answer["error"], TxlError)
            raise kind(f"{self._name}: {answer['message']}")
        return answer

    def _death(self) -> WorkerError:
        code = self._process.wait()
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name + (", as when memory runs out" if -code == signal.SIGKILL else "")
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return WorkerError(f"{self._name}: its process died ({how}): {said[-1].strip() if said else 'it said nothing'}")

    @property
    def _name(self) -> str:
        c = self.cell
        return f"{c.target} on {c.backend} at M = {c.mem_len}, L = {c.segment_len}, B = {c.batch_size}"


def environment(threads: int) -> dict[str, str]:
    """The parent's, with equal threads and this very package for all workers, and the time of the start."""
    package = str(Path(txl_export.__file__).resolve().parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # SAFEPATH: modules of the user's present folder must not take the place of installed ones.
    python = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    return {**os.environ, **python, **dict.fromkeys(pools, str(threads)), STARTED: repr(time.monotonic())}
