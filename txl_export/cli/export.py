"""`txl-export export`: from a checkpoint to a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txl_export.cli._files import read_ids, read_text
from txl_export.cli._options import (
    HEAD,
    LAYOUT,
    LAYOUT_NAMES,
    NAMED_VALUES,
    NAMES,
    PRECISION,
    TOP_K,
    Reading,
    checkpoint_options,
    examples,
    joined,
    json_option,
)
from txl_export.cli._output import print_json, print_table, progress
from txl_export.number_types import PRECISIONS
from txl_export.units import si

if TYPE_CHECKING:
    import numpy as np

    from txl_export.bundle import Bundle

EXAMPLES = examples(
    "export models/stdlib-bytes -o engines/stdlib-bytes",
    "export models/stdlib-bytes -o engines/long --mem-len 1600 --segment-lens 1,16,64",
    "export models/stdlib-bytes -o engines/heads --head log_probs --head target,top_k@last --top-k 10",
    "export models/stdlib-bytes -o engines/half --precision fp16 --calibration README.md",
    "export models/stdlib-bytes -o engines/small --precision int8 --calibration README.md",
    "export models/stdlib-bytes -o engines/tuned --adapter adapters/tuned",
    "export models/stdlib-bytes -o engines/even --same-length --clamp-len 400 --keep-checkpoint",
    "export kimiyoung/enwik8-base -o engines/enwik8-size --random-weights 1 --mem-len 512",
)


@click.command(epilog=EXAMPLES)
@click.argument("checkpoint", metavar="CKPT|CONFIG-NAME", type=click.Path(path_type=Path))
@click.option("-o", "--out-dir", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The bundle.")
@click.option(
    "--segment-lens",
    type=NAMES,
    help="A graph for each: a number of tokens, or a range such as 1-64; the layout's usual ones when not given. In"
    " layout ring they are lengths of calls, numbers only, of which a segment may take several.",
)
@click.option("--layout", default=LAYOUT, metavar=LAYOUT_NAMES, help="What the memory tensors hold.")
@click.option("--rewind", type=int, default=0, help="Tokens that sessions can take back at any time (layout ring).")
@click.option(
    "--precision",
    default=PRECISION,
    metavar="|".join(PRECISIONS),
    help="Of products and memory; int8 and int4 of weights only.",
)
@click.option(
    "--memory-precision",
    metavar="fp32|fp16|bf16",
    help="Type of the memory tensors alone: fp32 or a half --precision.",
)
@click.option(
    "--tensors",
    type=NAMED_VALUES,
    multiple=True,
    callback=joined,
    help="Precision by name, fp32 or that of --precision, such as logits=fp32,layers.*.content=fp32; inspect lists"
    " the names and why each has its precision. Repeatable.",
)
@click.option(
    "--calibration",
    "calibration_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text, or token ids as .npy, on which a precision below fp32 chooses what must stay in fp32; random tokens"
    " when not given.",
)
@click.option(
    "--head",
    "heads",
    type=NAMES,
    multiple=True,
    default=(HEAD,),
    help="What graphs return: log_probs, logits, target, top_k, features; NAME@last for the last position"
    " only. Repeatable, or several with commas; the first is the default of sessions.",
)
@click.option("--segment-len", type=int, help="Tokens a feed is cut into by default; the longest when not given.")
@click.option("--top-k", type=int, default=TOP_K, help="Tokens that head top_k returns.")
@click.option("--keep-checkpoint", is_flag=True, help="Put a copy of the checkpoint into the bundle.")
@click.option(
    "--cover/--no-cover",
    default=True,
    show_default=True,
    help="Add a graph for a range where the lengths given leave some length without one.",
)
@click.option(
    "--random-weights",
    "seed",
    type=int,
    metavar="SEED",
    help="Draw the weights of a named configuration, to try its size; inspect lists the names.",
)
@checkpoint_options
@json_option
def command(
    checkpoint: Path,
    out_dir: Path,
    seed: int | None,
    heads: tuple[tuple[str, ...], ...],
    calibration_file: Path | None,
    reading: Reading,
    as_json: bool,
    **options: Any,
) -> None:
    """Export a checkpoint as a bundle of ONNX graphs with the memory as inputs and outputs.

    An existing bundle is replaced once the new one is complete, its engines are gone then. With --adapter, the
    merged model is first compared with base and adapter run side by side. In fp16 and bf16 the residual stream,
    LayerNorm and softmax stay in fp32, and so does every product whose numbers are too large for the type. In int8
    and int4 weights are rounded and all else stays in fp32, for ONNX Runtime on CPUs; products whose rounding costs
    the calibration text too much of its perplexity keep their weights.
    """
    import txl_export

    loaded = reading.load(checkpoint) if seed is None else reading.draw(str(checkpoint), seed)
    with progress() as report:
        head = [name for group in heads for name in group]
        calibration = None if calibration_file is None else _calibration(calibration_file)
        bundle = txl_export.export(loaded, out_dir, head=head, calibration=calibration, progress=report, **options)
    if as_json:
        print_json(_summary(bundle))
    else:
        _print(bundle, options["segment_lens"])


def _calibration(path: Path) -> bytes | np.ndarray:
    return read_ids(path, max_rank=2) if path.suffix == ".npy" else read_text(path)


def _summary(bundle: Bundle) -> dict[str, Any]:
    m = bundle.manifest
    return {
        "bundle": str(bundle.path),
        "layout": m.layout,
        "precision": m.precision,
        "policy": m.policy.to_dict(),
        "mem_len": m.mem_len,
        "segment_len": m.segment_len,
        "heads": list(m.heads),
        "graphs": [{"file": g.file, "segment": str(g.segment), "head": g.head} for g in m.graphs],
        "files": {name: entry["bytes"] for name, entry in m.files.items()},
        "bytes": sum(entry["bytes"] for entry in m.files.values()),
        "notes": [m.random.note] if m.random else [],
    }


def _print(bundle: Bundle, asked: Sequence[str] | None) -> None:
    from txl_export.segments import parse_segments

    m, summary = bundle.manifest, _summary(bundle)
    graphs = {g.file: g for g in m.graphs}
    rows = []
    for name, size in summary["files"].items():
        graph = graphs.get(name)
        rows.append((name, graph.head if graph else "", str(graph.segment) if graph else "", si(size, "B")))
    total = si(summary["bytes"], "B")
    title = f"{bundle.path}: M = {m.mem_len}, layout {m.layout}, {m.precision}, {total}"
    print_table(title, ("file", "head", "tokens per call", "size"), rows, left=3)
    for line in m.policy.describe():
        click.echo(line)
    for note in summary["notes"]:
        click.echo(f"note: {note}")
    wanted = set(parse_segments(asked)) if asked else {g.segment for g in m.graphs}
    for segment in sorted({g.segment for g in m.graphs} - wanted):
        needed = "what other lengths leave over" if m.traits.in_place else "without same_length, lengths between them"
        click.echo(f"{segment} was added: {needed} would have no graph (--no-cover)")
    click.echo(f"next: txl-export verify {bundle.path}{_how(m.precision)}")


def _how(precision: str) -> str:
    """Options of `verify` that show what a precision does: the backend that rounds as it does, on a text."""
    if precision == "fp32":
        return ""
    return " --text FILE" if PRECISIONS[precision].weights_only else " --backend typed --text FILE"
