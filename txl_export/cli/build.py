"""`txl-export build`: from the graphs of a bundle to TensorRT engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from txl_export.cli._engines import print_engines
from txl_export.cli._options import NAMES, examples, json_option
from txl_export.cli._output import print_json, progress
from txl_export.units import parse_bytes

# `txl_export.building.BATCH`, which cannot be read here without importing numpy; a test compares them.
BATCH = "1:1:8"

EXAMPLES = examples(
    "build engines/stdlib-bytes --backend tensorrt-rtx",
    "build engines/stdlib-bytes --backend tensorrt-rtx --compute-capability sm80,sm89 --batch 1:4:16",
    "build engines/stdlib-bytes --backend tensorrt --opt-level 5 --workspace 2GiB --timing-cache timings",
)


class _Bytes(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value)
        except ValueError:
            self.fail(f"{value!r} is no size: write 512MiB or 2GiB", param, ctx)


@click.command(epilog=EXAMPLES)
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    default="tensorrt",
    metavar="tensorrt|tensorrt-rtx",
    help="What builds: tensorrt for this machine's GPU; tensorrt-rtx for GPUs of any machine, also without one.",
)
@click.option("--batch", default=BATCH, metavar="MIN:OPT:MAX", help="Streams per call; OPT is optimised for.")
@click.option(
    "--compute-capability",
    "compute_capabilities",
    type=NAMES,
    default=(),
    metavar="smNN,...",
    help="GPUs to build for (tensorrt-rtx). When not given one portable engine for all from sm80 on: it is as"
    " large as those for fewer, and builds as fast.",
)
@click.option("--opt-level", type=click.IntRange(0, 5), help="Search for fast kernels: 0 short to 5 long.")
@click.option("--workspace", type=_Bytes(), metavar="SIZE", help="Most scratch memory of a kernel, such as 2GiB.")
@click.option(
    "--timing-cache",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep timings of kernels between builds (tensorrt), by version, GPU and graph.",
)
@click.option("--tf32", is_flag=True, help="Let fp32 products be rounded to TF32: faster, ten bits of mantissa.")
@click.option("--force", is_flag=True, help="Build also what is up to date.")
@json_option
def command(bundle: Path, as_json: bool, **options: Any) -> None:
    """Build a TensorRT engine from every graph of a bundle, next to the graphs.

    Engines for the same package and GPUs are replaced, others stay. A build that fails changes nothing.
    """
    import txl_export

    with progress() as report:
        warned: dict[str, None] = {}
        result = txl_export.build(bundle, progress=report, warn=lambda line: warned.update({line: None}), **options)
    for line in warned:
        click.echo(f"warning: {line}", err=True)
    if as_json:
        print_json(result.to_dict())
    else:
        print_engines(result.to_dict()["engines"])
