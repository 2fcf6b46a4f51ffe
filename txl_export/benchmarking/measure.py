"""`bench`: what is asked for is checked and planned, then run, and ends in a table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from txl_export.backends import GPU_BACKENDS
from txl_export.benchmarking import machine
from txl_export.benchmarking.blocks import Blocks
from txl_export.benchmarking.plan import Request, plan
from txl_export.benchmarking.progress import Progress, Work
from txl_export.benchmarking.quality import TEXT_BYTES, Text
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import Table
from txl_export.benchmarking.target import Given, Target
from txl_export.benchmarking.workspace import workspace
from txl_export.command_words import override_words
from txl_export.errors import InputError


def bench(
    targets: Given | Sequence[Given],
    mem_lens: Sequence[int] | None = None,
    segment_lens: Sequence[int] = (1, 64),
    batch_sizes: Sequence[int] = (1,),
    backends: Sequence[str] = ("eager", "onnxruntime"),
    layouts: Sequence[str] | None = None,
    rounds: int = 5,
    threads: int | None = None,
    text: str | Path | None = None,
    text_bytes: int = TEXT_BYTES,
    pretokenized: bool = False,
    output: str | Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
    log: Callable[[str], None] | None = None,
) -> Table:
    """Time calls over memory lengths, against eager and against what the machine can do.

    Every cell (target, backend, layout, M, L, B) runs in its own process with its memory full. The cells of
    one (target, M, L, B) are alive together and take turns, one at a time, so that all see the same machine.
    Where a target is no bundle of that layout that holds M, its checkpoint is exported into a temporary folder.

    Args:
        targets: bundles and checkpoints, one or several; a checkpoint that was loaded with overrides is timed with
            them.
        mem_lens: memory lengths M in tokens; None for each target's own.
        segment_lens: tokens L per call.
        batch_sizes: streams B.
        backends: "eager" is what the others are compared with.
        layouts: "ring", "kv", "hidden"; None for each bundle's own, "ring" for checkpoints.
        rounds: turns of every cell.
        threads: CPU threads of every cell; None for all cores.
        text: a file that every M is scored on, as one stream from an empty memory, in the target's own segments.
        text_bytes: how much of it is read at most.
        pretokenized: its words are set apart by blanks already, whatever splits raw text for a target.
        output: a JSON file that holds what is done after every step. What it holds at the start is kept.
        restart: write over that file instead.
        progress: called with (what is being done, seconds spent, seconds in all as far as can be told).
        log: called with a line for everything that is done, and for what was there before.

    Raises:
        InputError, ConfigError: a length, number, backend, layout or text that cannot be had, or an output that
            was measured under other conditions.
        BundleError, CheckpointError: a target, or a bundle's checkpoint where it is needed, cannot be read.
        EnvironmentMismatch: a missing package, not enough disk space, or a worker that died.
    """
    given = [targets] if isinstance(targets, Given) else targets
    if not given:
        raise InputError("targets is empty: give at least one bundle or checkpoint")
    scored = None if text is None else Text.read(text, text_bytes, pretokenized)
    request = Request.checked(mem_lens, segment_lens, batch_sizes, backends, layouts, rounds, threads, scored)
    opened = [Target.open(t) for t in given]
    blocks = plan(opened, request)
    store = Store(_conditions(opened, request, text_bytes), None if output is None else Path(output), restart)
    with workspace() as folder:
        Blocks(blocks, request, store, folder, Work(progress), log or (lambda _: None)).run()
    return store.table


def _conditions(targets: Sequence[Target], request: Request, text_bytes: int) -> Table:
    """A table without rows."""
    about = machine.describe()
    if set(GPU_BACKENDS) & set(request.backends):
        about = machine.with_gpu(about)
    content = {t.name: t.digest for t in targets}
    doubts = []
    if text := request.text:
        content[f"text {text.name}"] = text.digest
        doubts = [f"{t.name}, {text.name}: {note}" for t in targets for note in text.notes(t.vocab, t.segment_len)]
    return Table(
        rows=(),
        machine={**about, "load_average": machine.load_average()},
        threads=request.threads,
        rounds=request.rounds,
        targets=content,
        doubts=tuple(doubts),
        command=_command(targets, request, text_bytes),
    )


def _command(targets: Sequence[Target], request: Request, text_bytes: int) -> str:
    """The command line that asks for the same."""
    options: dict[str, object] = {
        "mem-lens": request.mem_lens,
        "segment-lens": request.segment_lens,
        "batch-sizes": request.batch_sizes,
        "backends": request.backends,
        "layouts": request.layouts,
        "rounds": request.rounds,
        "threads": request.threads,
        "text": request.text.name if request.text else None,
        "text-bytes": text_bytes if request.text and text_bytes != TEXT_BYTES else None,
    }
    words = ["txl-export", "bench", *(t.name for t in targets)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    words += ["--pretokenized"] * bool(request.text and request.text.pretokenized)
    read = [t.read for t in targets if t.read]  # all of them alike: the options are given once
    words += map(str, override_words({name: value for source in read for name, value in source.overrides.items()}))
    for folder in dict.fromkeys(folder for source in read for folder in source.adapters):
        words += ["--adapter", str(folder)]
    return shlex.join(words)
