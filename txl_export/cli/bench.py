"""`txl-export bench`: latencies over memory lengths, backends and batch sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from txl_export.cli._options import INTS, NAMES, examples, json_option
from txl_export.cli._output import console, print_json, progress

EXAMPLES = examples(
    "bench models/stdlib-bytes --mem-lens 128,512,1600",
    "bench engines/stdlib-bytes --backends onnxruntime --batch-sizes 1,8",
    "bench models/stdlib-bytes --layouts hidden,kv --segment-lens 1 --threads 2 --json",
)


@click.command(epilog=EXAMPLES)
@click.argument("targets", metavar="BUNDLE|CKPT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mem-lens", type=INTS, help="Memory lengths M; each target's own when not given.")
@click.option("--segment-lens", type=INTS, default="1,64", help="Tokens per call.")
@click.option("--batch-sizes", type=INTS, default="1", help="Streams run together.")
@click.option("--backends", type=NAMES, default="eager,onnxruntime", help="What runs the model.")
@click.option("--layouts", type=NAMES, help="hidden, kv; a bundle's own, kv for checkpoints, when not given.")
@click.option("--rounds", type=int, default=5, help="Times that the candidates take turns.")
@click.option("--threads", type=int, help="CPU threads of each; all cores when not given.")
@json_option
def command(targets: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Time bundles and checkpoints over memory lengths and backends.

    Every candidate runs in a process of its own with as many threads, one at a time, taking turns. Where a
    target is no bundle of a memory length and layout, its checkpoint is exported for the occasion.
    """
    from txl_export.benchmarking import bench, render

    with progress() as report:
        table = bench(targets, progress=report, **options)
    if as_json:
        print_json(table.to_dict())
    else:
        render(table, console(markup=True))
