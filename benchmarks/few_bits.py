"""`python -m benchmarks.few_bits`: what weights of few bits do to the shipped model, and how they are best stored.

Writes `benchmarks/INT8.md`. Nothing is timed.
"""

from __future__ import annotations

import dataclasses
import itertools
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

import txl_export
from benchmarks.half import CALIBRATION, SEGMENT_LEN, TEXT, Row, compared, table
from benchmarks.shapes import ROOT, open_shape
from txl_export.benchmarking import machine
from txl_export.bundle import WEIGHTS
from txl_export.checkpoints import Checkpoint
from txl_export.files import write_atomic
from txl_export.graphs.stored import InBlocks
from txl_export.number_types import FORMATS, WeightFormat
from txl_export.precision import PrecisionPolicy
from txl_export.units import si

SHAPE = "stdlib-bytes"
BITS, BLOCKS, SEGMENTS = (8, 4), (16, 32, 64, 128, 256), 100
TARGET = ROOT / "benchmarks" / "INT8.md"


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=TARGET, help="The file to write.")
def command(output: Path) -> None:
    """Measure both and write the tables."""
    checkpoint = txl_export.load_checkpoint(open_shape(SHAPE).checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        numbers, reasons = _numbers(checkpoint, Path(folder))
    write_atomic(output, _page(numbers, reasons, list(_formats(checkpoint))).encode())
    click.echo(output.read_text(encoding="utf-8"))


def _numbers(checkpoint: Checkpoint, work: Path) -> tuple[list[Row], list[str]]:
    """Bundles in ONNX Runtime against the reference, by policy; and what was chosen for which reason."""
    rows, reasons = [], list[str]()
    for precision, chosen in [("fp32", False), *itertools.product(FORMATS, (True, False))]:
        name = precision if chosen or precision == "fp32" else f"{precision} everywhere"
        click.echo(f"comparing {name}", err=True)
        options = {"segment_lens": (1, SEGMENT_LEN), "cover": False, **_policy(precision, chosen)}
        bundle = txl_export.export(checkpoint, work / name, **options)
        report = txl_export.verify(bundle, checkpoint, text=_read(TEXT), segments=SEGMENTS)
        stored = si(int(bundle.manifest.files[WEIGHTS]["bytes"]), "B")
        rows.append((name, *compared(report), stored, str(len(bundle.manifest.policy.in_fp32()))))
        reasons += bundle.manifest.policy.describe() if chosen else []
    return rows, reasons


def _policy(precision: str, chosen: bool) -> dict[str, Any]:
    if chosen:
        return {"precision": precision, "calibration": _read(CALIBRATION)}
    return {"calibration": PrecisionPolicy.uniform(precision)}


def _read(module: Any) -> bytes:
    return Path(str(module.__file__)).read_bytes()


def _formats(checkpoint: Checkpoint) -> Iterator[Row]:
    """All weights rounded in several ways: how far they move by each rule, and what the one used does to a text."""
    exact = _nats(checkpoint)
    for bits, block in itertools.product(BITS, BLOCKS):
        click.echo(f"rounding to {bits} bits by {block}", err=True)
        rounded = [_rounded(checkpoint, rule, WeightFormat(bits, block, 1)) for rule in RULES.values()]
        moved = _nats(dataclasses.replace(checkpoint, weights=rounded[0])) - exact
        errors = (_error(checkpoint, weights) for weights in rounded)
        yield str(bits), str(block), *errors, f"{100 * np.expm1(moved):+.4f} %"


def _rounded(checkpoint: Checkpoint, rule: Rule, form: WeightFormat) -> dict[str, np.ndarray]:
    return {n: rule(w, form) if _is_product(n, w) else w for n, w in checkpoint.weights.items()}


def _is_product(name: str, weight: np.ndarray) -> bool:
    """Weights of products; the rows of a tied table, which are also looked up, are left out."""
    return weight.ndim == 2 and ".W_" in name and not name.endswith("W_kR")


def _error(checkpoint: Checkpoint, weights: dict[str, np.ndarray]) -> str:
    """Root mean square of how far weights move, as a share of that of the weights."""
    names = [n for n, w in checkpoint.weights.items() if _is_product(n, w)]
    moved = sum(float(np.square(weights[n] - checkpoint.weights[n], dtype=np.float64).sum()) for n in names)
    return f"{100 * (moved / sum(float(np.square(checkpoint.weights[n]).sum()) for n in names)) ** 0.5:.3f} %"


def _nats(checkpoint: Checkpoint) -> float:
    engine = txl_export.Engine.load(checkpoint, backend="eager", segment_len=SEGMENT_LEN)
    assert checkpoint.vocab is not None
    ids = checkpoint.vocab.encode(_read(TEXT))[: SEGMENTS * SEGMENT_LEN + 1]
    return engine.score(ids)


Rule = Callable[[np.ndarray, WeightFormat], np.ndarray]


def _shipped(weight: np.ndarray, form: WeightFormat) -> np.ndarray:
    stored = InBlocks(form)
    found: np.ndarray = stored.weight(stored.tensors(torch.from_numpy(weight)), weight.shape[1]).numpy()
    return found


def _offset(weight: np.ndarray, form: WeightFormat) -> np.ndarray:
    """From a block's least to its largest number, as with a zero point for each block; zero stays zero."""

    def steps(x: Tensor) -> Tensor:
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        scale = (high - low).clamp(min=1e-30) / ((1 << form.bits) - 1)
        zero = (-low / scale).round()
        return ((x / scale).round() + zero).clamp(0, (1 << form.bits) - 1).sub(zero) * scale

    return _by_block(weight, form, steps)


def _even(weight: np.ndarray, form: WeightFormat) -> np.ndarray:
    """As many steps below zero as above it."""

    def steps(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / ((1 << form.bits - 1) - 1)
        return (x / scale).round() * scale

    return _by_block(weight, form, steps)


def _by_block(weight: np.ndarray, form: WeightFormat, rounded: Callable[[Tensor], Tensor]) -> np.ndarray:
    size, n_in = form.block_of(weight.shape[1]), weight.shape[1]
    padded = torch.nn.functional.pad(torch.from_numpy(weight), (0, -n_in % size))
    found: np.ndarray = rounded(padded.unflatten(-1, (-1, size))).flatten(1)[:, :n_in].numpy()
    return found


# The first is used.
RULES: dict[str, Rule] = {"farthest exact": _shipped, "even": _even, "with offset": _offset}
NUMBERS = (
    "policy", "perplexity", "in fp32", "apart", "same best token", "largest error, nats", "drift", "weights.bin",
    "products in fp32",
)  # fmt: skip
ERRORS = ("bits", "numbers per scale", *(f"error, {rule}" for rule in RULES), f"perplexity, {next(iter(RULES))}")


def _page(numbers: Iterable[Row], reasons: Iterable[str], formats: Iterable[Row]) -> str:
    about = machine.describe()
    used = ", ".join(f"in {name} {f.block}" for name, f in FORMATS.items())
    return f"""# Weights of few bits

Made by

    python -m benchmarks.few_bits

on {about["cpu"]}, {about["cores"]} cores, Python {platform.python_version()}, torch {metadata.version("torch")},
onnxruntime {metadata.version("onnxruntime")}. Nothing is timed here.

## What they do to the shipped model

The bundle in ONNX Runtime against the reference in fp32, on {SEGMENTS} segments of {SEGMENT_LEN} bytes of
`{TEXT.__name__}.py`, a module that the model never saw; M = 512, layout `kv`. Products were chosen on
`{CALIBRATION.__name__}.py`; "everywhere" rounds all that have weights. In `weights.bin` the position tables and the
rows that the embedding looks up are fp32 in all of them.

{table(NUMBERS, numbers)}

`verify` allows 0.5 % of perplexity and 2 % of best tokens. int8 is far within both with every product, so nothing has
to stay in fp32. int4 is not: everywhere it exceeds both, and with what stays in fp32 it is larger than int8 and still
exceeds the second. For a model of this size it does not pay; a larger one may tell otherwise, as `verify --text` shows.

What was chosen:

{chr(10).join(f"- {line}" for line in reasons)}

## How they are stored

Weights of the layers' products rounded in several ways: how far they move (root mean square, as a share of that of the
weights), and what that does to the perplexity of the same text in the reference, operands as they are. Up to so many
numbers of a row share a scale, fewer where a row then takes fewer bytes. Rules: the farthest number of a block is exact
and stands for the lowest whole number; as many steps below zero as above it; steps from a block's lowest to its highest
number, which takes an offset for each block, a further tensor to read. Used are {used} numbers per scale.

{table(ERRORS, formats)}
"""


if __name__ == "__main__":
    command()
