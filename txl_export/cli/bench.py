"""`txl-export bench`: latencies over memory lengths, backends and batch sizes."""

from __future__ import annotations

from pathlib import Path

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
@click.option("--mem-lens", type=INTS, help="Memory lengths M (of checkpoints; a bundle's is fixed).")
@click.option("--segment-lens", type=INTS, default="1,64", help="Tokens per call.")
@click.option("--batch-sizes", type=INTS, default="1", help="Streams run together.")
@click.option("--backends", type=NAMES, default="eager,onnxruntime", help="What runs the model.")
@click.option("--layouts", type=NAMES, default="kv", help="Layouts to export checkpoints in.")
@click.option("--rounds", type=int, default=5, help="Times that the candidates take turns.")
@click.option("--threads", type=int, help="CPU threads of each; all cores when not given.")
@json_option
def command(
    targets: tuple[Path, ...],
    mem_lens: tuple[int, ...] | None,
    segment_lens: tuple[int, ...],
    batch_sizes: tuple[int, ...],
    backends: tuple[str, ...],
    layouts: tuple[str, ...],
    rounds: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Time bundles and checkpoints over memory lengths and backends.

    Each candidate runs in a process of its own with as many threads, one at a time, taking turns.
    """
    from txl_export.benchmarking import bench, render

    with progress() as report:
        table = bench(
            targets,
            mem_lens=mem_lens,
            segment_lens=segment_lens,
            batch_sizes=batch_sizes,
            backends=backends,
            layouts=layouts,
            rounds=rounds,
            threads=threads,
            progress=report,
        )
    if as_json:
        print_json(table.to_dict())
    else:
        render(table, console())
