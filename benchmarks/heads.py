"""`python -m benchmarks.heads`: what heads cost at the size of WikiText-103, 267,735 words. Writes `HEADS.md`.

`target` and `top_k` compute a tail cluster for the positions that need it. Both ends are measured: no position
needs a tail, and all do.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

import txl_export
from benchmarks.half import table
from txl_export.benchmarking import machine
from txl_export.benchmarking.process import Candidate, Worker
from txl_export.benchmarking.serving import serve
from txl_export.benchmarking.table import Cell
from txl_export.benchmarking.worker import Job
from txl_export.checkpoints import Checkpoint
from txl_export.files import write_atomic

TARGET = Path(__file__).with_name("HEADS.md")
NAMES = ("kimiyoung/wt103-base", "kimiyoung/wt103-large")
LAYOUT = "kv"
LENGTHS, ROUNDS, SECONDS, LEAST = (1, 64), 5, 1.0, 3
# Added to what a cluster's logit is: no tail can hold one of the best tokens, or each is likelier than any word.
BIAS = {"none": -30.0, "all": 12.0}
# Head, and which tails its positions need; the first is what a call costs without its head.
RUNS = (
    ("features", "all"), ("log_probs", "all"), ("log_probs@last", "all"),
    ("target", "none"), ("target", "all"), ("top_k", "none"), ("top_k", "all"),
)  # fmt: skip


class HeadJob(Job):
    """Calls whose targets lie in the shortlist, or in all clusters in turn."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """As `Job`, with "tails" in the message."""
        super().__init__(spec)
        self.tails = spec["tails"]

    def prepare(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Random ids, and targets for a head that takes them, [B, L] each."""
        ids, targets = super().prepare()
        if targets is None:
            return ids, None
        ends = self.info.config.cluster_ends
        last = 1 if self.tails == "none" else len(ends) - 1
        # At L = 1 every target of "all" lies in the largest tail.
        cluster = (
            np.full(targets.shape, last - 1) if self.L == 1 else np.arange(targets.size).reshape(self.B, -1) % last
        )
        return ids, self.rng.integers(np.take(ends, cluster), np.take(ends, cluster + 1))


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=TARGET, help="The file to write.")
@click.option("--names", default=",".join(NAMES), help="Configurations to measure.")
@click.option("--worker", is_flag=True, hidden=True)
def command(output: Path, names: str, worker: bool) -> None:
    """Measure, write the tables."""
    if worker:
        serve(HeadJob)
        return
    sections = []
    for name in names.split(","):
        with tempfile.TemporaryDirectory() as folder:
            sections += [(name, length, list(_measure(name, length, Path(folder)))) for length in LENGTHS]
    write_atomic(output, _page(sections).encode())
    click.echo(output.read_text(encoding="utf-8"))


def _measure(name: str, length: int, work: Path) -> Iterator[tuple[str, ...]]:
    """Rows of one table: all runs alive together, taking turns."""
    candidates = [_candidate(name, head, tails, length, work) for head, tails in RUNS]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(c, work / f"{i}.log")) for i, c in enumerate(candidates)]
        for worker, (head, tails) in zip(workers, RUNS, strict=True):
            click.echo(f"{name}, L = {length}: loading {head}, tails {tails}", err=True)
            worker.load()
        rounds = [[median(w.time_round(SECONDS, LEAST, 1000)) for w in workers] for _ in range(ROUNDS)]
        memory = [w.end().calls for w in workers]
    for i, (head, tails) in enumerate(RUNS):
        times = [r[i] for r in rounds]
        own = [r[i] - r[0] for r in rounds]  # against the same round's call without a head
        held = f"{max(0, memory[i] - memory[0]) / 1e6:,.0f}" if i else "-"
        yield (
            f"`{head}`", tails if head in ("target", "top_k") else "-", _spread(times), _spread(own) if i else "-", held
        )  # fmt: skip


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _candidate(name: str, head: str, tails: str, length: int, work: Path) -> Candidate:
    bundle = _bundle(name, tails, work)
    threads = machine.physical_cores()
    m = bundle.manifest
    cell = Cell(name, "onnxruntime", m.layout, m.mem_len, length, 1, threads, head)
    message: dict[str, Any] = {
        "source": str(bundle.path), "origin": None, "overrides": {}, "backend": "onnxruntime", "mem_len": m.mem_len,
        "segment_len": length, "batch_size": 1, "threads": threads, "head": head, "tails": tails,
    }  # fmt: skip
    return Candidate(cell, (sys.executable, "-m", "benchmarks.heads", "--worker"), message)


def _bundle(name: str, tails: str, work: Path) -> txl_export.Bundle:
    """The model with random weights and the clusters' biases set, exported once."""
    path = work / tails
    if not path.exists():
        click.echo(f"exporting {name}, tails {tails}", err=True)
        heads = [head for head, needed in RUNS if needed == tails]
        txl_export.export(_checkpoint(name, tails), path, segment_lens=LENGTHS, layout=LAYOUT, cover=False, head=heads)
    return txl_export.Bundle.open(path, check_files=False)


def _checkpoint(name: str, tails: str) -> Checkpoint:
    found = txl_export.random_checkpoint(name)
    bias = found.weights["softmax.cluster_bias"] + np.float32(BIAS[tails])
    return dataclasses.replace(found, weights={**found.weights, "softmax.cluster_bias": bias}, random=None)


COLUMNS = ("head", "tails needed", "call, ms", "of which the head, ms", "the head's memory, MB")


def _page(sections: list[tuple[str, int, list[tuple[str, ...]]]]) -> str:
    about, versions = machine.describe(), f"onnxruntime {metadata.version('onnxruntime')}"
    tables = []
    for name, length, rows in sections:
        config, _ = txl_export.named_config(name)
        widths = ", ".join(str(config.cluster_width(i)) for i in range(config.n_tails + 1))
        ends = ", ".join(f"{end:,}" for end in config.cluster_ends[1:])
        tables.append(
            f"## {name}, L = {length}\n\n"
            f"Clusters up to word {ends}, embedded in {widths} numbers; M = {config.mem_len}.\n\n"
            f"{table(COLUMNS, rows)}"
        )
    return f"""# What heads cost with a large vocabulary

Made by

    python -m benchmarks.heads

on {about["cpu"]}, {about["cores"]} cores, Python {platform.python_version()}, {versions};
layout `{LAYOUT}`, fp32, B = 1, memory full, random weights. Every row is a process of its own; all of a table are alive
together and take {ROUNDS} turns of {SECONDS:g} s. Medians of the turns' medians, with the lowest and highest turn. A
head's own time is the call's less that of `features`, which has none, in the same turn; its memory is the most that the
process held during calls, less the same of `features`, so it counts the weights of the softmax layer, as far as they
were read.

"None": every target is in the shortlist, or no tail is likely enough to hold one of the 10 best words. "All": targets
are in all clusters alike (at L = 1 in the largest tail), or every tail is likelier than the best word of the shortlist.
`log_probs` computes everything in either case. Where a head takes less than the spread of `features`, its own time is
noise, below zero too.

{chr(10).join(f"{t}{chr(10)}" for t in tables)}"""


if __name__ == "__main__":
    command()
