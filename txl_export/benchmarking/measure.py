"""`bench`: what is asked for is planned, exported where it is missing, and compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import txl_export
from txl_export.benchmarking import machine, process
from txl_export.benchmarking.plan import Block, Request, plan
from txl_export.benchmarking.process import Candidate, Comparison, Source
from txl_export.benchmarking.progress import Progress, Work
from txl_export.benchmarking.run import run_comparisons
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import EAGER, Cell, Table
from txl_export.benchmarking.target import Target
from txl_export.bundle import Bundle
from txl_export.errors import InputError

Say = Callable[[str], None]


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
        progress: called with (what is being done, seconds spent, seconds in all as far as can be told).

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
    store = Store(Table((), machine.describe(), request.threads, request.rounds))
    work = Work(progress)
    with tempfile.TemporaryDirectory(prefix="txl-bench-") as folder:
        exports = Exports(blocks, Path(folder))
        run_comparisons(exports.comparisons, store, request.rounds, prepare=exports.prepare, work=work)
    work.say("done")
    return store.table


class Exports:
    """The bundles that blocks need beside what their targets are, made when their first comparison comes."""

    def __init__(self, blocks: Sequence[Block], folder: Path) -> None:
        """Nothing is exported yet; `folder` takes what will be."""
        self._folder = folder
        self._block_of = {c: block for block in blocks for c in self._compared(block)}
        self.comparisons = tuple(self._block_of)

    def _compared(self, block: Block) -> Iterator[Comparison]:
        for cells in block.comparisons:
            yield Comparison(tuple(self._candidate(block, cell) for cell in cells), EAGER)

    def _candidate(self, block: Block, cell: Cell) -> Candidate:
        source = self._source(block, cell)
        message = {
            "source": str(source.path.absolute()),
            "origin": source.origin,
            "overrides": source.overrides,
            **{n: getattr(cell, n) for n in ("backend", "mem_len", "segment_len", "batch_size", "threads", "head")},
        }
        return Candidate(cell, process.COMMAND, message)

    def _source(self, block: Block, cell: Cell) -> Source:
        if cell.backend == EAGER:
            return block.target.source
        if block.target.holds(cell.layout, block.mem_len):
            return Source(block.target.path)
        return Source(self._place(block, cell.layout))

    def _place(self, block: Block, layout: str) -> Path:
        return self._folder / f"{block.number}-{layout}"

    def prepare(self, comparison: Comparison, say: Say) -> None:
        """Export what a comparison's block needs and has not got yet."""
        block = self._block_of[comparison]
        missing = [layout for layout in block.exports if not self._place(block, layout).exists()]
        checkpoint = block.target.checkpoint() if missing else None
        for layout in missing:
            assert checkpoint is not None
            txl_export.export(
                checkpoint,
                self._place(block, layout),
                mem_len=block.mem_len,
                segment_lens=block.graphs,
                layout=layout,
                head=block.target.head,
                cover=False,  # no cell feeds another length
                progress=partial(_say_export, say, f"exporting M = {block.mem_len}, {layout}"),
            )


def _say_export(say: Say, what: str, step: str, _done: int, _total: int) -> None:
    say(f"{what}: {step}")
