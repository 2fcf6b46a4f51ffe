"""A run through a matrix: what is not measured yet, as far as the time goes; kept after every comparison."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.artefacts import Artefact, ensure
from benchmarks.matrix import Choice, Point, candidates_first, choose, seconds
from benchmarks.peers import JUDGE, PEERS
from benchmarks.section import Gap, Section
from benchmarks.shapes import Shape, make_checkpoint
from txl_export.benchmarking import machine
from txl_export.benchmarking.process import Candidate, Comparison, Cost, WorkerError
from txl_export.benchmarking.run import Turn, run_comparisons
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import Cell
from txl_export.cost import call_cost

HEAD = "log_probs"
BASE = "huggingface"
RAM_SHARE = 0.7  # of the machine's memory, for all processes of a comparison together
TURN = Turn(seconds=0.4, least=3, most=200)  # a slow peer's call may take minutes
_COMMAND = ("-m", "benchmarks.peers.worker")

_now = time.monotonic

Say = Callable[[str], None]
Progress = Callable[[str, float, float], None]  # what is being done, seconds spent, seconds given


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        name: of the section of the results.
        points: the most telling first.
        shapes: by name.
        peers: names of `PEERS`.
        rounds: turns of every cell.
        threads: CPU threads of every cell.
        minutes: after which nothing new is begun that would not end in time.
        build_first: whether everything is built before anything is timed.
        again: whether a plan that is complete is measured again.
    """

    name: str
    points: tuple[Point, ...]
    shapes: dict[str, Shape]
    peers: tuple[str, ...]
    rounds: int
    threads: int
    minutes: float
    build_first: bool
    again: bool


class Campaign:
    """Works through a plan; `section` tells at any time how far it is."""

    def __init__(self, plan: Plan, store: Store, scratch: Path, before: Section | None, say: Say, show: Progress):
        """Nothing runs yet.

        Args:
            plan: what is asked for.
            store: keeps rows.
            scratch: an existing folder for what goes with the run.
            before: the section of an earlier run, whose failures are not tried again; None to try all.
            say: called with lines to leave behind.
            show: called with what is being done.
        """
        self._plan, self._store, self._scratch, self._say, self._show = plan, store, scratch, say, show
        self._failed = list(before.failed) if before else []
        self._began = _now()
        self._spent = self._expected = 0.0
        self._chosen = {point: self._choose(point) for point in plan.points}
        store.expect(cell for point in plan.points for cell in self._cells(point, self._chosen[point].peers))

    @property
    def complete(self) -> bool:
        """Whether nothing is left to measure."""
        return not any(map(self._is_open, self._plan.points))

    def run(self) -> None:
        """Measure until all is done or the time is up.

        Raises:
            ToleranceError: a peer gives other numbers than the reference.
            EnvironmentMismatch: something cannot be built.
        """
        if self.complete:
            return
        self._store.note(load_average=max(machine.load_average(), self._store.load_average))
        if self._plan.build_first:
            wanted = [point for point in self._plan.points if self._is_open(point)]
            ensure((a for point in wanted for a in self._artefacts(point)), self._show_now)
        for point in self._plan.points:
            if self._is_open(point) and self._fits(point):
                self._measure(point)

    def section(self) -> Section:
        """What is there now."""
        open_ = [point for point in self._plan.points if self._is_open(point)]
        given = 60 * self._plan.minutes
        endless = {p: s for p in open_ if (s := self._pace * self._seconds(p)) > given}
        skipped = [Gap(p, c.left_out, c.reason) for p, c in self._chosen.items() if c.left_out]
        skipped += [
            Gap(p, self._chosen[p].peers, f"would take about {s / 60:.0f} minutes: give --minutes")
            for p, s in endless.items()
        ]
        return Section(
            table=self._store.table,
            date=datetime.date.today().isoformat(),
            minutes=self._plan.minutes,
            skipped=tuple(skipped),
            failed=tuple(self._failed),
            left=tuple(point for point in open_ if point not in endless),
        )

    def _choose(self, point: Point) -> Choice:
        """Who takes part: as many as memory allows, without those that failed before."""
        shape = self._plan.shapes[point.shape]
        choice = choose(self._plan.peers, shape, point, RAM_SHARE * ram_bytes())
        lost = {peer for gap in self._failed if gap.point == point for peer in gap.peers}
        return choice._replace(peers=tuple(peer for peer in choice.peers if peer not in lost))

    def _is_open(self, point: Point) -> bool:
        peers = self._chosen[point].peers
        return bool(peers) and not self._store.has(self._cells(point, peers))

    def _cells(self, point: Point, peers: Sequence[str]) -> list[Cell]:
        return [self._cell(point, peer) for peer in peers]

    def _cell(self, point: Point, peer: str) -> Cell:
        layout, threads = PEERS[peer].layout, self._plan.threads
        return Cell(point.shape, peer, layout, point.mem_len, point.segment_len, point.batch_size, threads, HEAD)

    def _artefacts(self, point: Point) -> list[Artefact]:
        """What the point's processes load, made for every length that the matrix has at that M."""
        shape = self._plan.shapes[point.shape]
        same = [p for p in self._plan.points if (p.shape, p.mem_len) == (point.shape, point.mem_len)]
        lengths = tuple(sorted({p.segment_len for p in same}))
        return [Artefact.of(peer, shape, point.mem_len, lengths) for peer in self._chosen[point].peers]

    def _fits(self, point: Point) -> bool:
        """Whether the comparison would end in time, as far as can be told from those that are done."""
        left = 60 * self._plan.minutes - (_now() - self._began)
        return self._pace * self._seconds(point) <= left

    @property
    def _pace(self) -> float:
        """Seconds that comparisons took for one that was expected."""
        return self._spent / self._expected if self._expected else 1.0

    def _seconds(self, point: Point) -> float:
        shape = self._plan.shapes[point.shape]
        building = sum(a.seconds for a in self._artefacts(point))
        return building + seconds(self._chosen[point].peers, shape.config, point, self._plan.rounds)

    def _measure(self, point: Point) -> None:
        """One comparison; where a process dies, once more without its peer."""
        expected, began = self._seconds(point), _now()
        try:
            self._compare(point)
        except WorkerError as e:
            self._fail(point, str(e))
            if self._is_open(point):
                self._measure(point)
            return
        self._spent += _now() - began
        self._expected += expected

    def _compare(self, point: Point) -> None:
        shape = self._plan.shapes[point.shape]
        make_checkpoint(shape)
        artefacts = {a.peer: a for a in self._artefacts(point)}
        ensure(artefacts.values(), self._show_now)
        expected = self._scratch / "expected.npy"
        expected.unlink(missing_ok=True)
        candidates = [self._candidate(point, artefacts[peer], expected) for peer in candidates_first(list(artefacts))]
        run_comparisons(
            [Comparison(tuple(candidates), BASE)],
            self._store,
            self._plan.rounds,
            progress=lambda what, _spent, _total: self._show_now(f"{point}: {what}"),
            turn=TURN,
        )
        self._say(self._summary(point))

    def _candidate(self, point: Point, artefact: Artefact, expected: Path) -> Candidate:
        message = {
            "peer": artefact.peer,
            "config": artefact.shape.config.to_dict(),
            "checkpoint": str(artefact.shape.checkpoint),
            "built": str(artefact.folder),
            "scratch": str(self._scratch),
            "expected": str(expected),
            "mem_len": point.mem_len,
            "segment_len": point.segment_len,
            "batch_size": point.batch_size,
            "threads": self._plan.threads,
        }
        return Candidate(
            self._cell(point, artefact.peer), (sys.executable, *_COMMAND), message, _cost(point, artefact.shape)
        )

    def _fail(self, point: Point, reason: str) -> None:
        """Go on without the peer that an error names; without the judge, or a name, there is no comparison."""
        choice = self._chosen[point]
        named = tuple(peer for peer in choice.peers if f" on {peer} at " in reason)
        lost = choice.peers if not named or JUDGE in named else named
        self._failed.append(Gap(point, lost, reason))
        self._chosen[point] = choice._replace(peers=tuple(peer for peer in choice.peers if peer not in lost))
        self._say(f"{point}: without {', '.join(lost)}, since {reason}")

    def _summary(self, point: Point) -> str:
        cells = self._cells(point, self._chosen[point].peers)
        rows = {row.backend: row for row in self._store.table.rows if row.cell in cells}
        left = sum(self._is_open(p) for p in self._plan.points)
        times = ", ".join(f"{peer} {rows[peer].p50_ms:.3g}" for peer in PEERS if peer in rows)
        return f"{point}: {times} ms ({left} left)"

    def _show_now(self, what: str) -> None:
        self._show(what, _now() - self._began, 60 * self._plan.minutes)


def _cost(point: Point, shape: Shape) -> Cost:
    """What the task needs at least, whoever does it."""
    window = shape.dialect.window(shape.config, point.mem_len)
    cost = call_cost(shape.config, point.mem_len, point.segment_len, point.batch_size, HEAD, window)
    return Cost(cost.bytes_read, cost.total_flops)


def ram_bytes() -> float:
    """The machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
