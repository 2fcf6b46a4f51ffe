"""Comparisons one after the other: their processes are alive together and take turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from txl_export.benchmarking.process import Candidate, Comparison, Worker
from txl_export.benchmarking.progress import Progress, Work
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import Cell, Facts, Row, make_rows

# Makes what a comparison's candidates load; told how to say what it is doing.
Prepare = Callable[[Comparison, Callable[[str], None]], None]

# Of one worker's turn: long enough for a stable median, short enough that all see the same machine.
ROUND_SECONDS, LEAST_CALLS, MOST_CALLS = 0.4, 5, 200

# A first guess at how long things take, which what was measured soon replaces.
_LOAD_SECONDS, _GUESSED_FLOPS, _GUESSED_BYTES, _GUESSED_CALL = 3.0, 1e10, 1e10, 0.01


def run_comparisons(
    comparisons: Sequence[Comparison],
    store: Store,
    rounds: int,
    progress: Progress | None = None,
    prepare: Prepare | None = None,
    log: Callable[[str], None] | None = None,
    work: Work | None = None,
) -> None:
    """Time all comparisons that the store does not hold yet, and keep the rows of each as soon as it is done.

    Args:
        comparisons: in the order in which they run.
        store: where rows are kept.
        rounds: turns of every cell.
        progress: called with (what is being done, seconds spent, seconds in all as far as can be told).
        prepare: called before a comparison is started with it and a function that takes what is being done.
        log: called with a line for every comparison that is done.
        work: what else is being done in the same run; None for nothing.

    Raises:
        TxlError: whatever a worker's job or `prepare` raises, or a worker that died.
    """
    work = Work(progress) if work is None else work
    store.expect(cell for c in comparisons for cell in c.cells)
    missing = [c for c in comparisons if not store.has(c.cells)]
    for comparison in missing:
        _plan(comparison, rounds, work)
    for i, comparison in enumerate(missing):
        if prepare:
            prepare(comparison, work.say)
        rows = _compare(comparison, rounds, work)
        store.add(rows)
        if log:
            log(f"{len(comparisons) - len(missing) + i + 1} of {len(comparisons)}: {_summary(rows)}")


def call_seconds(candidate: Candidate) -> float:
    """A guess at the time of one call."""
    if candidate.cost is None:
        return _GUESSED_CALL
    return max(candidate.cost.flops / _GUESSED_FLOPS, candidate.cost.bytes / _GUESSED_BYTES)


def _plan(comparison: Comparison, rounds: int, work: Work) -> None:
    for c in comparison.candidates:
        work.plan(f"load {c.cell.backend}", _load_seconds(c))
        work.plan(f"round {c.cell.backend}", rounds * _round_seconds(c))


def _load_seconds(c: Candidate) -> float:
    return _LOAD_SECONDS + 4 * call_seconds(c)


def _round_seconds(c: Candidate) -> float:
    return max(ROUND_SECONDS, (LEAST_CALLS + 2) * call_seconds(c))


def _compare(comparison: Comparison, rounds: int, work: Work) -> list[Row]:
    """Load all cells, then let them take turns; the workers end with it, however it ends."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txl-bench-")))
        workers, loaded = [], []
        for i, c in enumerate(comparison.candidates):
            with work.doing(f"loading {label(c.cell)}", f"load {c.cell.backend}", _load_seconds(c)):
                workers.append(stack.enter_context(Worker(c, folder / f"{i}.log")))
                loaded.append(workers[-1].load())
        measured: dict[Cell, list[list[float]]] = {cell: [] for cell in comparison.cells}
        for i in range(rounds):
            # Every other round runs backwards, so that no cell always follows the same one.
            for worker in workers if i % 2 == 0 else reversed(workers):
                what, kind = f"round {i + 1} of {rounds}: {label(worker.cell)}", f"round {worker.cell.backend}"
                with work.doing(what, kind, _round_seconds(worker.candidate)):
                    measured[worker.cell].append(worker.time_round(ROUND_SECONDS, LEAST_CALLS, MOST_CALLS))
        facts = {w.cell: Facts(**told._asdict(), peak_rss=w.end()) for w, told in zip(workers, loaded, strict=True)}
    return make_rows(measured, facts, comparison.base)


def label(cell: Cell) -> str:
    """A cell in few words."""
    return f"{cell.backend}, M = {cell.mem_len}, L = {cell.segment_len}, B = {cell.batch_size}"


def _summary(rows: Sequence[Row]) -> str:
    first = rows[0]
    times = ", ".join(f"{row.backend} {row.layout} {row.p50_ms:.3g} ms" for row in rows)
    return f"{first.target}, M = {first.mem_len}, L = {first.segment_len}, B = {first.batch_size}: {times}"
