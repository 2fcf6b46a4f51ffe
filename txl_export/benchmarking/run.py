"""`bench`: export what is missing, then let the workers of each comparison take turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import txl_export
from txl_export.benchmarking import machine
from txl_export.benchmarking.plan import Block, Request, plan
from txl_export.benchmarking.process import Source, Worker
from txl_export.benchmarking.table import EAGER, Cell, Row, Table, make_rows
from txl_export.benchmarking.target import Target
from txl_export.bundle import Bundle
from txl_export.errors import InputError

Progress = Callable[[str, int, int], None]

# Of one worker's turn: long enough for a stable median, short enough that all see the same machine.
ROUND_SECONDS, LEAST_CALLS, MOST_CALLS = 0.4, 5, 200


def bench(
    targets: Sequence[str | Path | Bundle],
    mem_lens: Sequence[int] | None = None,
    segment_lens: Sequence[int] = (1, 64),
    batch_sizes: Sequence[int] = (1,),
    backends: Sequence[str] = ("eager", "onnxruntime"),
    layouts: Sequence[str] | None = None,
    rounds: int = 5,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Table:
    """Time calls over memory lengths, against eager.

    Every cell (target, backend, layout, M, L, B) runs in its own process with its memory full. The cells of
    one (target, M, L, B) are alive together and take turns, one at a time, so that all see the same machine.
    Where a target is no bundle of that M and layout, its checkpoint is exported into a temporary folder.

    Args:
        targets: bundles and checkpoints.
        mem_lens: memory lengths M in tokens; None for each target's own.
        segment_lens: tokens L per call.
        batch_sizes: streams B.
        backends: "eager" is what the others are compared with.
        layouts: "hidden", "kv"; None for each bundle's own, "kv" for checkpoints.
        rounds: turns of every cell.
        threads: CPU threads of every cell; None for all cores.
        progress: called with (what is being done, steps done, steps in all).

    Raises:
        InputError, ConfigError: a length, number, backend or layout that cannot be had.
        BundleError, CheckpointError: a target, or a bundle's checkpoint where it is needed, cannot be read.
        EnvironmentMismatch: a missing package, not enough disk space, or a worker that died.
    """
    given = [targets] if isinstance(targets, str | Path | Bundle) else targets
    if not given:
        raise InputError("targets is empty: give at least one bundle or checkpoint")
    request = Request.checked(mem_lens, segment_lens, batch_sizes, backends, layouts, rounds, threads)
    blocks = plan([Target.open(t) for t in given], request)
    steps = _Steps(progress, sum(_count_steps(block, request.rounds) for block in blocks))
    rows: list[Row] = []
    for block in blocks:
        with tempfile.TemporaryDirectory(prefix="txl-bench-") as folder:
            sources = _prepare(block, Path(folder), steps)
            for comparison in block.comparisons:
                rows += _compare(comparison, sources, request.rounds, Path(folder), steps)
    steps.say("done")
    return Table(tuple(rows), machine.describe(), request.threads, request.rounds)


class _Steps:
    """Counts what is done for a progress bar."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def say(self, what: str) -> None:
        """Tell what is being done."""
        if self._progress:
            self._progress(what, self._done, self._total)

    def step(self) -> None:
        """One more is done."""
        self._done += 1


def _count_steps(block: Block, rounds: int) -> int:
    """Exports, loads and turns; each comparison loads every cell once."""
    return len(block.exports) + sum(len(cells) * (1 + rounds) for cells in block.comparisons)


def _prepare(block: Block, folder: Path, steps: _Steps) -> dict[str, Source]:
    """What the block's cells load, by layout, and eager's checkpoint by the backend's name."""
    target, sources = block.target, {}
    if any(cell.backend == EAGER for cells in block.comparisons for cell in cells):
        sources[EAGER] = target.source
    if target.holds(target.layout, block.mem_len):
        sources[target.layout] = Source(target.path)
    checkpoint = target.checkpoint() if block.exports else None
    for layout in block.exports:
        assert checkpoint is not None
        say = partial(_say_export, steps, f"exporting M = {block.mem_len}, {layout}")
        exported = txl_export.export(
            checkpoint,
            folder / layout,
            mem_len=block.mem_len,
            segment_lens=block.graphs,
            layout=layout,
            head=target.head,
            cover=False,  # no cell feeds another length
            progress=say,
        )
        steps.step()
        sources[layout] = Source(exported.path)
    return sources


def _say_export(steps: _Steps, what: str, step: str, _done: int, _total: int) -> None:
    steps.say(f"{what}: {step}")


def _compare(cells: Sequence[Cell], sources: dict[str, Source], rounds: int, folder: Path, steps: _Steps) -> list[Row]:
    """Load all cells, then let them take turns; the workers end with it, however it ends."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(cell, folder / f"{i}.log")) for i, cell in enumerate(cells)]
        filled: dict[Cell, int] = {}
        for worker in workers:
            steps.say(f"loading {_label(worker.cell)}")
            filled[worker.cell] = worker.load(sources[_key(worker.cell)])
            steps.step()
        measured: dict[Cell, list[list[float]]] = {cell: [] for cell in cells}
        for i in range(rounds):
            # Every other round runs backwards, so that no cell always follows the same one.
            for worker in workers if i % 2 == 0 else reversed(workers):
                steps.say(f"round {i + 1} of {rounds}: {_label(worker.cell)}")
                measured[worker.cell].append(worker.time_round(ROUND_SECONDS, LEAST_CALLS, MOST_CALLS))
                steps.step()
    return make_rows(measured, filled)


def _key(cell: Cell) -> str:
    return EAGER if cell.backend == EAGER else cell.layout


def _label(cell: Cell) -> str:
    return f"{cell.backend}, M = {cell.mem_len}, L = {cell.segment_len}, B = {cell.batch_size}"
