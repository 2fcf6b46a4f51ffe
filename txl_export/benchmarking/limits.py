"""What a call can take at least on this machine: its cost over the rates that `rates` measured in a process."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl_export.benchmarking.process import Cost, WorkerError, environment
from txl_export.benchmarking.table import Limit

COMMAND = (sys.executable, "-m", "txl_export.benchmarking.rates")
SECONDS = 10.0  # that measuring takes, about


@dataclass(frozen=True)
class Limits:
    """What was measured.

    Attributes:
        read: (bytes of the array, bytes per second), by rising size.
        flop_rate: FLOPs per second of the fastest matrix product.
    """

    read: tuple[tuple[int, float], ...]
    flop_rate: float

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Limits:
        """Take what `measure` gave."""
        read = sorted((p["bytes"], p["bytes_per_second"]) for p in value["read"])
        return cls(tuple(read), max(p["flops_per_second"] for p in value["matmul"]))

    def bandwidth(self, nbytes: int) -> float:
        """Bytes per second for a working set: between two sizes by its logarithm, beyond them as at the last."""
        sizes, rates = zip(*self.read, strict=True)
        return float(np.interp(math.log(max(1, nbytes)), np.log(sizes), rates))

    def of(self, cost: Cost) -> Limit:
        """The least that a call of that cost can take."""
        return Limit(cost.bytes, cost.flops, self.bandwidth(cost.bytes), self.flop_rate)


def measure(threads: int) -> dict[str, Any]:
    """Measure in a fresh process with that many threads; raises WorkerError when it dies.

    Returns:
        JSON-ready: per size of array, and per size of matrix, the best rate, what gave it, and the rates of all.
    """
    with subprocess.Popen(
        [*COMMAND, str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment(threads),
        start_new_session=True,  # Ctrl-C is the parent's to handle
    ) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode:
        said = err.strip().splitlines()
        raise WorkerError(
            f"measuring what the machine can do failed (exit code {process.returncode}): "
            f"{said[-1].strip() if said else 'it said nothing'}"
        )
    found: dict[str, Any] = json.loads(out)
    return found
