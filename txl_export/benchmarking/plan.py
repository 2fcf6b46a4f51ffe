"""What a benchmark will run, checked before anything starts: blocks of one target and M, and their comparisons."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from txl_export.backends import BACKENDS, GPU_BACKENDS, backend, cuda
from txl_export.backends.base import GpuBackend
from txl_export.benchmarking.machine import physical_cores
from txl_export.benchmarking.quality import Text
from txl_export.benchmarking.store import QualityKey
from txl_export.benchmarking.table import EAGER, Cell
from txl_export.benchmarking.target import HEAD, Target
from txl_export.errors import InputError, missing_extra
from txl_export.layouts import LAYOUTS, layout_of
from txl_export.runtime.scoring import SCORING_HEADS

# What a backend needs on any machine: the package, and the extra that brings it. Those on a GPU say it themselves.
_NEEDS = {EAGER: ("torch", "export"), "onnxruntime": ("onnxruntime", "cpu")}


@dataclass(frozen=True)
class Request:
    """What was asked for, checked as far as that goes without a target.

    Attributes:
        mem_lens: None for each target's own.
        segment_lens: tokens L per call.
        batch_sizes: streams B.
        backends: names.
        layouts: None for each target's own.
        rounds: turns of every cell.
        threads: CPU threads of every cell.
        text: what each M is scored on; None for nothing.
    """

    mem_lens: tuple[int, ...] | None
    segment_lens: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    backends: tuple[str, ...]
    layouts: tuple[str, ...] | None
    rounds: int
    threads: int
    text: Text | None = None

    @classmethod
    def checked(
        cls,
        mem_lens: Sequence[int] | None,
        segment_lens: Sequence[int],
        batch_sizes: Sequence[int],
        backends: Sequence[str],
        layouts: Sequence[str] | None,
        rounds: int,
        threads: int | None,
        text: Text | None = None,
    ) -> Request:
        """Check the arguments of `bench`; raises InputError or EnvironmentMismatch."""
        request = cls(
            None if mem_lens is None else _numbers("mem_lens", mem_lens, 0),
            _numbers("segment_lens", segment_lens, 1),
            _numbers("batch_sizes", batch_sizes, 1),
            tuple(dict.fromkeys(backends)),
            None if layouts is None else tuple(dict.fromkeys(layouts)),
            _numbers("rounds", [rounds], 1)[0],
            _numbers("threads", [physical_cores() if threads is None else threads], 1)[0],
            text,
        )
        for name, values in (("backends", request.backends), ("layouts", request.layouts)):
            if values == ():
                raise InputError(f"{name} is empty: give at least one")
        for name in request.backends:
            if name not in BACKENDS:
                raise InputError(f"backend {name!r} is unknown: use one of {', '.join(BACKENDS)}")
            if name in GPU_BACKENDS:
                continue
            if name not in _NEEDS:
                timed = ", ".join((*_NEEDS, *GPU_BACKENDS))
                raise InputError(f"backend {name!r} runs nothing that can be timed: use one of {timed}")
            package, extra = _NEEDS[name]
            if importlib.util.find_spec(package) is None:
                raise missing_extra(package, extra, f"backend {name!r}")
        return request


def _numbers(name: str, values: Sequence[int], least: int) -> tuple[int, ...]:
    found = tuple(dict.fromkeys(values))
    if not found:
        raise InputError(f"{name} is empty: give at least one number")
    for n in found:
        if not isinstance(n, int) or isinstance(n, bool) or n < least:
            raise InputError(f"{name} holds {n!r}, expected integers of {least} or more")
    return found


@dataclass(frozen=True, eq=False)
class Block:
    """Everything at one M of a target, which shares exports.

    Attributes:
        number: of the block in its run, from 0.
        target: what is timed.
        mem_len: M.
        exports: layouts to export the checkpoint in.
        lengths: tokens per segment that exports must run.
        heads: heads to export.
        comparisons: cells that take turns.
        scored_on: backend and layout that score the text; None without a text.
    """

    number: int
    target: Target
    mem_len: int
    exports: tuple[str, ...]
    lengths: tuple[int, ...]
    heads: tuple[str, ...]
    comparisons: tuple[tuple[Cell, ...], ...]
    scored_on: tuple[str, str] | None

    def graphs(self, layout: str) -> list[str]:
        """Segment lengths to export in a layout."""
        return self.target.graphs_for(layout, self.lengths)

    @property
    def window(self) -> int | None:
        """Keys that a query sees at most; None for all."""
        return self.target.dialect.window(self.target.config, self.mem_len)

    def quality_key(self, text: Text) -> QualityKey:
        """What tells the figure of quality from others."""
        return self.target.name, self.mem_len, self.target.segment_len, text.name


def plan(targets: Sequence[Target], request: Request) -> list[Block]:
    """Blocks in the order in which they run.

    Raises:
        InputError, ConfigError: a length, number or layout that a target cannot have.
        BundleError, CheckpointError: a checkpoint that is needed and gone, or another one now.
    """
    blocks: list[Block] = []
    for target in targets:
        mem_lens = (target.mem_len,) if request.mem_lens is None else request.mem_lens
        blocks += [_block(n, target, M, request) for n, M in enumerate(mem_lens, len(blocks))]
        _check(target, blocks[-len(mem_lens) :], request)
    return blocks


def _block(number: int, target: Target, mem_len: int, request: Request) -> Block:
    layouts = request.layouts or (target.layout,)
    on_graphs = [(b, layout) for b in request.backends if b != EAGER for layout in layouts]
    exports = [layout for _, layout in on_graphs if not target.holds(layout, mem_len)]
    # Eager keeps hidden states, whatever layout a bundle has: one cell stands for all layouts.
    cells = [(b, "hidden") for b in request.backends if b == EAGER] + on_graphs
    cells.sort(key=lambda cell: request.backends.index(cell[0]))
    # A text is read in the target's own segments, by a head that scores tokens.
    lengths = [*request.segment_lens, *[target.segment_len] * bool(request.text)]
    heads = [target.head, *[HEAD] * bool(request.text and target.head not in SCORING_HEADS)]
    return Block(
        number,
        target,
        mem_len,
        tuple(dict.fromkeys(exports)),
        tuple(dict.fromkeys(lengths)),
        tuple(dict.fromkeys(heads)),
        tuple(
            tuple(Cell(target.name, b, lay, mem_len, L, B, request.threads, target.head) for b, lay in cells)
            for L in request.segment_lens
            for B in request.batch_sizes
        ),
        _scored_on(layouts, request),
    )


def _scored_on(layouts: Sequence[str], request: Request) -> tuple[str, str] | None:
    """The fastest that is compared anyway."""
    if request.text is None:
        return None
    graphs = [b for b in request.backends if b != EAGER]
    if not graphs:
        return EAGER, "hidden"
    return graphs[0], next((name for name in LAYOUTS if name in layouts), layouts[0])


def _check(target: Target, blocks: Sequence[Block], request: Request) -> None:
    """Say now what would fail later."""
    for block in blocks:
        target.dialect.window(target.config, block.mem_len)
    for layout in request.layouts or ():
        layout_of(layout)
    exports = any(b.exports for b in blocks)
    for name in request.backends:
        if name in GPU_BACKENDS:
            _check_gpu(cast(GpuBackend, backend(name)), name, target, blocks, request)
    if request.text:
        _check_text(target, blocks, request.text)
    if any(b != EAGER for b in request.backends):
        for length in request.segment_lens:
            target.check_segment(length)
        most = _most_streams(target, exports)
        for n in request.batch_sizes:
            if most is not None and n > most:
                raise InputError(f"batch_sizes holds {n}, graphs take 1 to {most} streams")
    if exports and importlib.util.find_spec("torch") is None:
        raise missing_extra("torch", "export", f"{target.name} at other memory lengths or layouts")
    if target.bundle and (exports or EAGER in request.backends):
        target.checkpoint()


def _check_gpu(runs: GpuBackend, name: str, target: Target, blocks: Sequence[Block], request: Request) -> None:
    """Say now what a GPU backend lacks, and what it cannot be given for the occasion: engines."""
    if target.bundle is not None:
        runs.check(target.bundle, request.batch_sizes)
    elif runs.fixed:
        raise InputError(
            f"{target.name} is a checkpoint, {name} runs bundles with engines: export and build it, or leave {name} out"
        )
    else:
        cuda.required(name)
    missing = next((b for b in blocks if b.exports), None)
    if runs.fixed and missing is not None:
        raise InputError(
            f"{target.name} has engines for layout {target.layout!r}, M = {target.mem_len}, but layout "
            f"{missing.exports[0]!r}, M = {missing.mem_len} was asked for: export and build that, or leave {name} out"
        )


def _check_text(target: Target, blocks: Sequence[Block], text: Text) -> None:
    if target.vocab is None:
        raise InputError(f"{target.name} comes without a vocabulary, which reading {text.name} needs: leave out --text")
    text.tokens(target.vocab, target.segment_len)
    for block in blocks:
        own = block.scored_on and block.scored_on[0] != EAGER and target.holds(block.scored_on[1], block.mem_len)
        if own and target.bundle and not set(SCORING_HEADS) & set(target.bundle.manifest.heads):
            raise InputError(
                f"{target.name} has heads {', '.join(target.bundle.manifest.heads)}, --text needs target or log_probs: "
                "export again with --head log_probs, or bench the checkpoint"
            )


def _most_streams(target: Target, exports: bool) -> int | None:
    """Streams that graphs take: as the bundle says, or as an export would."""
    if target.bundle:
        return target.bundle.manifest.max_batch
    if not exports or importlib.util.find_spec("torch") is None:
        return None
    from txl_export.graphs.tracing import MAX_BATCH

    return MAX_BATCH
