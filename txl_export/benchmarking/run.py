"""Comparisons one after the other: their processes are alive together and take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from txl_export.benchmarking import limits
from txl_export.benchmarking.process import Candidate, Comparison, Worker
from txl_export.benchmarking.progress import Progress, Work
from txl_export.benchmarking.serving import UNTIMED_CALLS
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import Cell, Facts, Limit, Row, make_rows
from txl_export.benchmarking.workspace import workspace

Say = Callable[[str], None]
# Makes what a comparison's candidates load; told how to say what it is doing.
Prepare = Callable[[Comparison, Say], None]


class Turn(NamedTuple):
    """One worker's turn: long enough for a stable median, short enough that all see the same machine.

    Attributes:
        seconds: after which no call is begun.
        least: calls, however long they take.
        most: calls.
    """

    seconds: float = 0.4
    least: int = 5
    most: int = 200


USUAL_TURN = Turn()


# A first guess at how long things take, which what was measured soon replaces.
_LOAD_SECONDS, _GUESSED_FLOPS, _GUESSED_BYTES, _GUESSED_CALL = 3.0, 1e10, 1e10, 0.01


def run_comparisons(
    comparisons: Sequence[Comparison],
    store: Store,
    rounds: int,
    progress: Progress | None = None,
    prepare: Prepare | None = None,
    log: Say | None = None,
    turn: Turn = USUAL_TURN,
) -> None:
    """Time all comparisons that the store does not hold yet, and keep the rows of each as soon as it is done.

    Args:
        comparisons: in the order in which they run.
        store: where rows are kept.
        rounds: turns of every cell.
        progress: called with (what is being done, seconds spent, seconds in all as far as can be told).
        prepare: called before a comparison is started, with it and a function that takes what is being done.
        log: called with a line for every comparison that is done, and for what was there before.
        turn: of every cell in every round.

    Raises:
        TxlError: whatever a worker's job or `prepare` raises, or a worker that died.
    """
    work = Work(progress)
    runner = Runner(comparisons, store, rounds, work, log, turn)
    for comparison in comparisons:
        runner.run(comparison, prepare)
    work.say("done")


class Runner:
    """Runs comparisons, those apart that the store holds already."""

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        store: Store,
        rounds: int,
        work: Work,
        log: Say | None = None,
        turn: Turn = USUAL_TURN,
    ) -> None:
        """Plan all of them; nothing is run yet. Arguments as of `run_comparisons`."""
        self._store, self._rounds, self._work, self._log = store, rounds, work, log or (lambda _: None)
        self._turn = turn
        store.expect(cell for c in comparisons for cell in c.cells)
        missing = [c for c in comparisons if not store.has(c.cells)]
        self._all, self._done = len(comparisons), len(comparisons) - len(missing)
        if self._done:
            self._log(f"{self._done} of {self._all} comparisons are in {store.path} and are kept")
        if any(candidate.cost for c in missing for candidate in c.candidates) and store.limits is None:
            work.plan("limits", limits.SECONDS)
        for comparison in missing:
            for candidate in comparison.candidates:
                work.plan(f"load {candidate.cell.backend}", _load_seconds(candidate))
                work.plan(f"round {candidate.cell.backend}", rounds * self._round_seconds(candidate))

    def run(self, comparison: Comparison, prepare: Prepare | None = None) -> None:
        """Run one of them and keep its rows, unless the store has them."""
        if self._store.has(comparison.cells):
            return
        if any(c.cost for c in comparison.candidates):
            self._measure_limits(comparison.cells[0].threads)
        if prepare:
            prepare(comparison, self._work.say)
        rows = self._compare(comparison)
        self._store.add(rows)
        self._done += 1
        self._log(f"{self._done} of {self._all}: {_summary(rows)}")

    def _measure_limits(self, threads: int) -> None:
        if self._store.limits is None:
            with self._work.doing("measuring what the machine can do", "limits", limits.SECONDS):
                self._store.note(limits=limits.measure(threads))

    def _compare(self, comparison: Comparison) -> list[Row]:
        """Load all cells, then let them take turns; the workers end with it, however it ends."""
        with ExitStack() as stack:
            folder = stack.enter_context(workspace())
            workers, loaded = [], []
            for i, c in enumerate(comparison.candidates):
                with self._work.doing(f"loading {label(c.cell)}", f"load {c.cell.backend}", _load_seconds(c)):
                    workers.append(stack.enter_context(Worker(c, folder / f"{i}.log")))
                    loaded.append(workers[-1].load())
            measured = self._take_turns(workers)
            facts = {
                w.cell: Facts(**told._asdict(), peak_rss=w.end().ever, limit=self._limit(w.candidate))
                for w, told in zip(workers, loaded, strict=True)
            }
        return make_rows(measured, facts, comparison.base)

    def _take_turns(self, workers: Sequence[Worker]) -> dict[Cell, list[list[float]]]:
        measured: dict[Cell, list[list[float]]] = {worker.cell: [] for worker in workers}
        for i in range(self._rounds):
            # Every other round runs backwards, so that no cell always follows the same one.
            for worker in workers if i % 2 == 0 else reversed(workers):
                what, kind = f"round {i + 1} of {self._rounds}: {label(worker.cell)}", f"round {worker.cell.backend}"
                with self._work.doing(what, kind, self._round_seconds(worker.candidate)):
                    measured[worker.cell].append(worker.time_round(*self._turn))
        return measured

    def _round_seconds(self, c: Candidate) -> float:
        return max(self._turn.seconds, (self._turn.least + UNTIMED_CALLS) * call_seconds(c))

    def _limit(self, candidate: Candidate) -> Limit | None:
        found = self._store.limits
        return found.of(candidate.cost) if found and candidate.cost else None


def call_seconds(candidate: Candidate) -> float:
    """A guess at the time of one call."""
    if candidate.cost is None:
        return _GUESSED_CALL
    return max(candidate.cost.flops / _GUESSED_FLOPS, candidate.cost.bytes / _GUESSED_BYTES)


def _load_seconds(c: Candidate) -> float:
    return _LOAD_SECONDS + 4 * call_seconds(c)


def label(cell: Cell) -> str:
    """A cell in few words."""
    return f"{cell.backend}, M = {cell.mem_len}, L = {cell.segment_len}, B = {cell.batch_size}"


def _summary(rows: Sequence[Row]) -> str:
    first = rows[0]
    times = ", ".join(f"{row.backend} {row.layout} {row.p50_ms:.3g} ms" for row in rows)
    return f"{first.target}, M = {first.mem_len}, L = {first.segment_len}, B = {first.batch_size}: {times}"
