"""The process of a step: `python -m benchmarks.gpu.worker JSON`, which prints a JSON object a line as it gets them.

The job holds "kind", "case", "way", "backend", "folder" (where checkpoints and bundles are), and "dry" (everything
small, on the stand-in for a GPU of the tests). What is made on purpose ends with {"error": a line}; any other error
ends the process with a traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.plan import Case, Step, model_of
from benchmarks.gpu.timing import DRY, Turn
from txl_export.checkpoints import Checkpoint, native
from txl_export.errors import TxlError
from txl_export.random_weights import random_weights

LAYOUT = "ring"
_BATCH_WEIGHTED = 1  # streams that engines are optimised for: latency first

Lines = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """What a step works on.

    Attributes:
        case: what is made or timed.
        way: of a peer.
        backend: runs bundles.
        folder: where checkpoints and bundles are.
        dry: everything small, on the stand-in.
    """

    case: Case
    way: str
    backend: str
    folder: Path
    dry: bool

    @classmethod
    def of(cls, step: Step, backend: str, folder: Path, dry: bool) -> Job:
        """The job of a step."""
        return cls(step.case, step.way, backend, folder, dry)

    @property
    def checkpoint(self) -> Path:
        """Folder of the random weights."""
        return self.folder / f"{self.case.model.replace('/', '-')}.checkpoint"

    @property
    def exported(self) -> Path:
        """Folder of the bundle without engines."""
        return self.folder / self.case.name

    @property
    def bundle(self) -> Path:
        """Folder of the bundle that is run; the stand-in's engines go to another, since they run the first's graphs."""
        return self.folder / f"{self.case.name}.engines" if self.dry else self.exported

    @property
    def turn(self) -> Turn:
        """How long calls are timed."""
        return DRY if self.dry else Turn()

    def to_json(self, kind: str) -> str:
        """As `main` takes it."""
        told = {"case": self.case.to_dict(), "way": self.way, "backend": self.backend, "folder": str(self.folder)}
        return json.dumps({"kind": kind, "dry": self.dry, **told})


def weights(job: Job) -> Lines:
    """Write the random weights of a case's model unless they are there."""
    if not job.checkpoint.is_dir():
        config, dialect = model_of(job.case.model)
        native.save(job.checkpoint, Checkpoint(config, dialect, random_weights(config, 0)))
    return [{"checkpoint": str(job.checkpoint)}]


def export(job: Job) -> Lines:
    """Export the bundle."""
    import txl_export

    case = job.case
    txl_export.export(
        txl_export.load_checkpoint(job.checkpoint),
        job.exported,
        mem_len=case.mem_len,
        segment_lens=case.segment_lens,
        layout=LAYOUT,
        head=case.head,
        cover=False,
        calibration=case.policy,
    )
    return [{"bundle": str(job.exported)}]


def build(job: Job) -> Lines:
    """Build its engines."""
    import txl_export

    batch = f"1:{_BATCH_WEIGHTED}:{max(job.case.batch_sizes)}"
    if job.dry:
        plans: Any = importlib.import_module("tests.standin.plans")
        plans.with_engines(job.exported, job.bundle, job.backend, batch)
        return [{"engines": []}]
    report = txl_export.build(job.exported, backend=job.backend, batch=batch)
    return [
        {"engines": [[str(b.graph.segment), b.bytes, b.engine.seconds, b.engine.precision] for b in report.engines]}
    ]


def verify(job: Job) -> Lines:
    """Compare with the reference in fp32, past two wraps of the memory where that takes no minutes."""
    import txl_export

    case, length = job.case, max(job.case.segment_lens)
    report = txl_export.verify(
        job.bundle,
        job.checkpoint,
        random=0,
        segments=case.segments,
        segment_len=length,
        batch_size=min(2, max(case.batch_sizes)),
        backend=job.backend,
    )
    wraps = case.segments * length / max(1, case.mem_len)
    return [{"passed": report.passed, "max_abs": report.max_abs, "segments": case.segments, "wraps": wraps}]


def ours(job: Job) -> Lines:
    """Time it."""
    from benchmarks.gpu import ours

    return ours.measure(job.case, job.bundle, job.backend, job.turn)


def peer(job: Job) -> Lines:
    """Time one way of PyTorch."""
    from benchmarks.gpu import peers

    return peers.measure(job.way, job.case, job.checkpoint, job.turn)


def bandwidth(job: Job) -> Lines:
    """Measure what the GPU's memory gives."""
    from benchmarks.gpu.ours import bandwidth

    return [bandwidth(1 << 20 if job.dry else 1 << 30)]


KINDS: dict[str, Callable[[Job], Lines]] = {
    "weights": weights, "export": export, "build": build, "verify": verify, "ours": ours, "peer": peer,
    "bandwidth": bandwidth,
}  # fmt: skip


@contextlib.contextmanager
def stand_in(wanted: bool) -> Iterator[None]:
    """The tests' stand-in in the place of a GPU, while this lasts."""
    if not wanted:
        yield
        return
    import pytest

    module: Any = importlib.import_module("tests.standin.gpu")
    with pytest.MonkeyPatch.context() as patch:
        module.Gpu().install(patch)
        yield


def main(told: str, answers: TextIO) -> None:
    """Do a job, as `Job.to_json` tells it; what it gives is written to `answers`."""
    job = json.loads(told)
    kind, case, folder = job.pop("kind"), Case.from_dict(job.pop("case")), Path(job.pop("folder"))
    with stand_in(job["dry"] and kind != "peer"):
        try:
            for line in KINDS[kind](Job(case=case, folder=folder, **job)):
                print(json.dumps(line), file=answers, flush=True)
        except TxlError as e:
            print(json.dumps({"error": str(e)}), file=answers, flush=True)


if __name__ == "__main__":
    apart = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    main(sys.argv[1], apart)
