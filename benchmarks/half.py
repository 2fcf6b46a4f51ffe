"""`python -m benchmarks.half`: what half precision does to the shipped model, and what engines take to build.

Neither needs a GPU: the typed module rounds as half does, and tensorrt-rtx builds ahead of time. Writes
`benchmarks/HALF.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click

import txl_export
from benchmarks.shapes import ROOT, make_checkpoint, open_shape
from txl_export.benchmarking import machine
from txl_export.bundle import WEIGHTS
from txl_export.files import write_atomic
from txl_export.number_types import TYPES
from txl_export.precision import PrecisionPolicy
from txl_export.units import si
from txl_export.verification import Report

SEGMENTS, SEGMENT_LEN = 200, 64
# Modules of the standard library: the shipped model was trained on the second, and never saw the first.
TEXT, CALIBRATION = argparse, dataclasses
LAYOUT = "kv"
POLICIES = ("fp16", "fp16 everywhere", "bf16", "bf16 everywhere")
BACKEND, SHAPES = "tensorrt-rtx", ("stdlib-bytes", "enwik8-base")
TARGET = ROOT / "benchmarks" / "HALF.md"

Row = tuple[str, ...]


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=TARGET, help="The file to write.")
def command(output: Path) -> None:
    """Measure both and write the tables."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = list(_numbers(Path(folder)))
        engines = list(_engines(Path(folder)))
    write_atomic(output, _page(numbers, engines).encode())
    click.echo(output.read_text(encoding="utf-8"))


def _numbers(work: Path) -> Iterator[Row]:
    """The typed module of the shipped model against the reference, by policy."""
    path, text = open_shape("stdlib-bytes").checkpoint, Path(str(TEXT.__file__)).read_bytes()
    checkpoint = txl_export.load_checkpoint(path)
    for name in POLICIES:
        click.echo(f"comparing {name}", err=True)
        bundle = txl_export.export(
            checkpoint, work / name, layout=LAYOUT, segment_lens=(SEGMENT_LEN,), cover=False, **_policy(name)
        )
        report = txl_export.verify(bundle, checkpoint, text=text, segments=SEGMENTS, backend="typed")
        yield (name, *compared(report), str(len(bundle.manifest.policy.in_fp32())))


def _policy(name: str) -> dict[str, Any]:
    precision, _, everywhere = name.partition(" ")
    if everywhere:
        return {"calibration": PrecisionPolicy.uniform(precision)}
    return {"precision": precision, "calibration": Path(str(CALIBRATION.__file__)).read_bytes()}


def compared(report: Report) -> Row:
    """Perplexities, how far they and the best tokens are apart, the largest error, and whether errors grow."""
    found, reference = report.perplexities or (float("nan"), float("nan"))
    apart, best = report.perplexity_difference or 0.0, report.top1 or 0.0
    drift = {True: "grows", False: "none", None: "too short"}[report.trend.drifts]
    return (
        f"{found:.5f}",
        f"{reference:.5f}",
        f"{100 * apart:.4f} %",
        f"{100 * best:.2f} %",
        f"{report.max_abs:.2g}",
        drift,
    )


def _engines(work: Path) -> Iterator[Row]:
    """Engines of two shapes in every precision, for all GPUs that a portable engine runs on."""
    for name in SHAPES:
        shape = open_shape(name)
        if name != "stdlib-bytes":
            make_checkpoint(shape)
        checkpoint = txl_export.load_checkpoint(shape.checkpoint)
        for precision in TYPES:
            click.echo(f"building {name} in {precision}", err=True)
            out = work / f"{name}.{precision}"
            bundle = txl_export.export(
                checkpoint, out, layout=LAYOUT, segment_lens=(1, 64), cover=False, precision=precision
            )
            for built in txl_export.build(bundle, backend=BACKEND).engines:
                products = ", ".join(f"{n} {p}" for p, n in built.engine.products.items())
                sizes = (si(int(bundle.manifest.files[WEIGHTS]["bytes"]), "B"), si(built.bytes, "B"))
                yield name, precision, str(built.graph.segment), products, *sizes, f"{built.engine.seconds:.1f}"


NUMBERS = (
    "policy", "perplexity", "in fp32", "apart", "same best token", "largest error, nats", "drift", "products in fp32",
)  # fmt: skip
ENGINES = ("shape", "precision", "L", "matrix products in", "weights", "engine", "seconds")


def _page(numbers: Iterable[Row], engines: Iterable[Row]) -> str:
    about = machine.describe()
    lengths = ", ".join(f"{name}: {open_shape(name).config.mem_len}" for name in SHAPES)
    return f"""# Half precision and engines, without a GPU

Made by

    python -m benchmarks.half

on {about["cpu"]}, {about["cores"]} cores, Python {platform.python_version()}, torch {metadata.version("torch")},
{BACKEND} {metadata.version(BACKEND)}. What runs on a GPU is not measured here.

## What half precision does to the shipped model

The typed module (PyTorch, which rounds every result to its type) against the reference in fp32, on {SEGMENTS}
segments of {SEGMENT_LEN} bytes of `{TEXT.__name__}.py`, a module that the model never saw; M = 512, layout `{LAYOUT}`.
Calibrated on `{CALIBRATION.__name__}.py`. "Everywhere" is the naive way: residual stream, LayerNorm and softmax in half
as well. This model is tame enough for it; `tests/graphs/test_half.py` has one that ends in NaN.

{table(NUMBERS, numbers)}

## What engines take

One engine for each segment length L, batch 1:1:8, portable (every GPU from sm80 on), built in a process of its own; M
is the shape's own ({lengths}). `enwik8-base` has the published architecture and random
weights. Weights are the bytes of all tensors in the bundle, position tables included; an engine adds kernels.
Calibrated on random tokens, unlike the table above.

{table(ENGINES, engines)}
"""


def table(columns: Row, rows: Iterable[Row]) -> str:
    """A table in Markdown."""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    command()
