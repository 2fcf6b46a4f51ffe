"""`txl-export bench`: latencies over memory lengths, backends and batch sizes, and what each memory length is worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txl_export.cli._options import (
    INTS,
    LAYOUT,
    NAMES,
    Reading,
    checkpoint_options,
    examples,
    json_option,
    pretokenized_option,
)
from txl_export.cli._output import console, long_progress, print_json
from txl_export.errors import EnvironmentMismatch, InputError, TxlError
from txl_export.files import require_writable
from txl_export.layouts import LAYOUTS

if TYPE_CHECKING:
    from txl_export.benchmarking import Table
    from txl_export.bundle import Bundle
    from txl_export.checkpoints import Checkpoint

EXAMPLES = examples(
    "bench models/stdlib-bytes --mem-lens 128,512,1600",
    "bench models/stdlib-bytes --mem-lens 0,64,256,1024 --text README.md -o bench.json --markdown bench.md",
    "bench models/stdlib-bytes --same-length --clamp-len 400 --mem-lens 256,1024",
    "bench engines/stdlib-bytes --backends onnxruntime --batch-sizes 1,8 --csv bench.csv",
    "bench models/stdlib-bytes --layouts hidden,kv --segment-lens 1 --threads 2 --json",
)

# `txl_export.bench`'s own default, which cannot be read here without importing numpy; a test compares the two.
TEXT_BYTES = 100_000
_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command(epilog=EXAMPLES)
@click.argument("targets", metavar="BUNDLE|CKPT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mem-lens", type=INTS, help="Memory lengths M; each target's own when not given.")
@click.option("--segment-lens", type=INTS, default="1,64", help="Tokens per call.")
@click.option("--batch-sizes", type=INTS, default="1", help="Streams run together.")
@click.option("--backends", type=NAMES, default="eager,onnxruntime", help="What runs the model.")
@click.option(
    "--layouts",
    type=NAMES,
    metavar=",".join(LAYOUTS),
    help=f"A bundle's own, {LAYOUT} for checkpoints, when not given.",
)
@click.option("--rounds", type=int, default=5, help="Times that the candidates take turns.")
@click.option("--threads", type=int, help="CPU threads of each; all cores when not given.")
@click.option("--text", type=_PATH, metavar="FILE", help="Score this text at every M: what the memory is worth.")
@click.option("--text-bytes", type=int, default=TEXT_BYTES, help="Bytes of it to read at most.")
@pretokenized_option
@click.option(
    "-o", "--output", type=_PATH, metavar="FILE", help="JSON, kept whole step by step: the same command goes on."
)
@click.option("--restart", is_flag=True, help="Write over --output instead of going on with it.")
@click.option("--csv", type=_PATH, metavar="FILE", help="Write all figures of all rows.")
@click.option("--markdown", type=_PATH, metavar="FILE", help="Write tables with their conditions.")
@checkpoint_options
@json_option
def command(
    targets: tuple[Path, ...],
    csv: Path | None,
    markdown: Path | None,
    reading: Reading,
    as_json: bool,
    **options: Any,
) -> None:
    """Time bundles and checkpoints over memory lengths and backends.

    Every candidate runs in a process of its own with as many threads, one at a time, taking turns. Where a
    target is no bundle of a memory length and layout, its checkpoint is exported for the occasion. Each row
    says how near it comes to the least time that reading and multiplying take on this machine.
    """
    output: Path | None = options["output"]
    taken = [*targets, *filter(None, [options["text"]])]
    for path in filter(None, (output, csv, markdown)):
        require_writable(path, apart_from=taken)
        taken.append(path)
    from txl_export.benchmarking import bench, render, to_csv, to_markdown

    try:
        with long_progress() as (report, log):
            opened = [_open(reading, t) for t in targets] if reading.given else targets
            table = bench(opened, progress=report, log=log, **options)
    except (KeyboardInterrupt, SystemExit, EnvironmentMismatch):
        _tell_what_is_kept(output)
        raise
    if as_json:
        print_json(table.to_dict())
    else:
        render(table, console(markup=True))
    _write(csv, to_csv, table)
    _write(markdown, to_markdown, table)


def _open(reading: Reading, path: Path) -> Bundle | Checkpoint:
    """As `Reading.open`; a bundle that holds several memory lengths is timed at those of --mem-lens."""
    from txl_export.bundle import Bundle

    source, asked = reading.open(path), reading.overrides.get("mem_len")
    if isinstance(source, Bundle) and asked not in (None, source.manifest.mem_len):
        raise InputError(f"{path} is a bundle of M = {source.manifest.mem_len}: time it with --mem-lens {asked}")
    return source


def _write(path: Path | None, form: Callable[[Table], str], table: Table) -> None:
    from txl_export.files import write_atomic

    if path is not None:
        write_atomic(path, form(table).encode())


def _tell_what_is_kept(output: Path | None) -> None:
    """What an interrupted run leaves behind."""
    from txl_export.benchmarking import Table
    from txl_export.files import read_json

    if output is None:
        click.echo("nothing is kept: with --output FILE the same command would go on", err=True)
        return
    try:
        table = Table.from_dict(read_json(output, InputError))
    except TxlError:  # it was never written, or is another file
        return
    click.echo(
        f"{len(table.rows)} rows and {len(table.quality)} figures of quality are kept in {output}, {table.missing} are "
        "missing: the same command goes on",
        err=True,
    )
