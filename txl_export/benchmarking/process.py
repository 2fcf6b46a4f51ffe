"""The parent's side of a worker: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import txl_export
from txl_export import errors
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


class Worker:
    """A process that holds one cell; a context manager that ends it."""

    def __init__(self, cell: Cell, log: Path) -> None:
        """Start the process; `log` takes what it says on stderr."""
        self.cell, self._log = cell, log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                env=_environment(cell.threads),
                start_new_session=True,  # Ctrl-C is the parent's to handle, which then ends the workers
            )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def load(self, source: Source) -> int:
        """Load the cell and fill its memory; returns the tokens in it. Raises TxlError."""
        cell = asdict(self.cell)
        del cell["target"], cell["layout"]
        how = {"source": str(source.path.absolute()), "origin": source.origin, "overrides": source.overrides}
        return int(self._ask({"do": "load", **how, **cell})["filled"])

    def time_round(self, seconds: float, least: int, most: int) -> list[float]:
        """Time calls, one after the other; returns their milliseconds. Raises TxlError."""
        answer = self._ask({"do": "round", "seconds": seconds, "least": least, "most": most})
        return [float(ms) for ms in answer["samples_ms"]]

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


def _environment(threads: int) -> dict[str, str]:
    """The parent's, with equal threads and this very package for all workers."""
    package = str(Path(txl_export.__file__).resolve().parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # SAFEPATH: modules of the user's present folder must not take the place of installed ones.
    python = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    return {**os.environ, **python, **dict.fromkeys(pools, str(threads))}
