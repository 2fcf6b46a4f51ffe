"""Block by block: what is missing is exported, compared, and scored on the text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import txl_export
from txl_export.backends import GPU_BACKENDS
from txl_export.benchmarking import machine, process, quality, run
from txl_export.benchmarking.plan import Block, Request
from txl_export.benchmarking.process import Candidate, Comparison, Cost, Source
from txl_export.benchmarking.progress import Work
from txl_export.benchmarking.run import Runner, Say
from txl_export.benchmarking.serving import settle
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import EAGER, Cell
from txl_export.bundle import Bundle
from txl_export.cost import FULL, call_cost
from txl_export.runtime.engine import Engine

# First guesses, for the remaining time.
_TRACE_SECONDS, _TOKEN_SECONDS = 6.0, 3e-4


class Blocks:
    """A run: block by block the exports, the comparisons and the text."""

    def __init__(
        self, blocks: Sequence[Block], request: Request, store: Store, folder: Path, work: Work, log: Say
    ) -> None:
        """Plan everything; nothing runs yet."""
        self._request, self._store, self._folder, self._work, self._log = request, store, folder, work, log
        self._compared = {block: tuple(self._comparisons(block)) for block in blocks}
        everything = [c for comparisons in self._compared.values() for c in comparisons]
        if request.text:
            store.expect(qualities=[block.quality_key(request.text) for block in blocks])
        self._runner = Runner(everything, store, request.rounds, work, log, run.USUAL_TURN)
        for block in blocks:
            self._plan(block)

    def run(self) -> None:
        """Do all that the store does not hold yet."""
        if self._store.table.missing:
            self._store.note(load_average=max(machine.load_average(), self._store.load_average))
            self._store.save()  # now, so that a file that cannot be written is no surprise later
        for block, comparisons in self._compared.items():
            for comparison in comparisons:
                self._runner.run(comparison, partial(self._prepare, block))
            self._score(block)
            shutil.rmtree(self._folder / str(block.number), ignore_errors=True)
        self._store.save()
        self._work.say("done")

    def _plan(self, block: Block) -> None:
        scores = self._scores(block)
        if scores:
            self._work.plan("text", self._text_seconds())
        if scores or not all(self._store.has(c.cells) for c in self._compared[block]):
            for layout in block.exports:
                self._work.plan("export", _export_seconds(block, layout))

    def _comparisons(self, block: Block) -> Iterator[Comparison]:
        for cells in block.comparisons:
            yield Comparison(tuple(self._candidate(block, cell) for cell in cells), EAGER)

    def _candidate(self, block: Block, cell: Cell) -> Candidate:
        source = self._source(block, cell.backend, cell.layout)
        message = {
            "source": str(source.path.absolute()),
            "origin": source.origin,
            "overrides": source.overrides,
            "adapters": [str(a.absolute()) for a in source.adapters],
            **{n: getattr(cell, n) for n in ("backend", "mem_len", "segment_len", "batch_size", "threads", "head")},
        }
        if cell.backend in GPU_BACKENDS:  # what is measured is the host's reading and multiplying
            return Candidate(cell, process.COMMAND, message)
        config = block.target.config
        policy = FULL if cell.backend == EAGER else block.target.policy
        cost = call_cost(config, cell.mem_len, cell.segment_len, cell.batch_size, cell.head, block.window, policy)
        return Candidate(cell, process.COMMAND, message, Cost(cost.bytes_read, cost.total_flops))

    def _source(self, block: Block, backend: str, layout: str) -> Source:
        if backend == EAGER:
            return block.target.source
        if block.target.holds(layout, block.mem_len):
            return Source(block.target.path)
        return Source(self._place(block, layout))

    def _place(self, block: Block, layout: str) -> Path:
        return self._folder / str(block.number) / layout

    def _prepare(self, block: Block, _comparison: Comparison, say: Say) -> None:
        self._export(block, block.exports, say)

    def _export(self, block: Block, layouts: Sequence[str], say: Say) -> None:
        """Make those of a block's bundles that are not there yet."""
        missing = [layout for layout in layouts if not self._place(block, layout).exists()]
        checkpoint = block.target.checkpoint() if missing else None
        for layout in missing:
            assert checkpoint is not None
            what = f"exporting M = {block.mem_len}, {layout}"
            with self._work.doing(what, "export", _export_seconds(block, layout)):
                txl_export.export(
                    checkpoint,
                    self._place(block, layout),
                    mem_len=block.mem_len,
                    segment_lens=block.graphs(layout),
                    **block.target.ring_options(layout, block.lengths),
                    layout=layout,
                    head=block.heads,
                    cover=False,  # nothing feeds another length
                    calibration=block.target.policy,
                    progress=partial(_say_step, say, what),
                )
        settle()  # tracing's threads

    def _scores(self, block: Block) -> bool:
        """Whether the block's text is still to be scored."""
        return bool(self._request.text and not self._store.has_quality(block.quality_key(self._request.text)))

    def _score(self, block: Block) -> None:
        text = self._request.text
        if not self._scores(block) or text is None or block.scored_on is None:
            return
        backend, layout = block.scored_on
        self._export(block, [lay for lay in block.exports if (backend, lay) == block.scored_on], self._work.say)
        what = f"scoring {Path(text.name).name} at M = {block.mem_len} on {backend}"
        with self._work.doing(what, "text", self._text_seconds()):
            found = quality.score(
                self._engine(block, backend, layout),
                block.target.name,
                text,
                block.target.segment_len,
                lambda done, n: self._work.say(f"{what}: {100 * done // n} %"),
            )
        self._store.add_quality(found)
        settle()
        value = f"{found.bits_per_byte:.4f} bits per byte, perplexity {found.perplexity:.4g} per token"
        self._log(f"{block.target.name}, M = {block.mem_len}: {value} on {text.name}")

    def _engine(self, block: Block, backend: str, layout: str) -> Engine:
        source = self._source(block, backend, layout)
        opened = block.target.checkpoint() if backend == EAGER else Bundle.open(source.path, check_files=False)
        return Engine.load(opened, backend, block.mem_len, block.target.segment_len, self._request.threads)

    def _text_seconds(self) -> float:
        return _TOKEN_SECONDS * len(self._request.text.data) if self._request.text else 0.0


def _export_seconds(block: Block, layout: str) -> float:
    return _TRACE_SECONDS * len(block.graphs(layout)) * len(block.heads)


def _say_step(say: Say, what: str, step: str, _done: int, _total: int) -> None:
    say(f"{what}: {step}")
