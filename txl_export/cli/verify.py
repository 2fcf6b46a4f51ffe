"""`txl-export verify`: the same tokens through a bundle and its judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txl_export.cli._files import read_ids, read_text
from txl_export.cli._options import examples, json_option, pretokenized_option
from txl_export.cli._output import console, print_json, progress
from txl_export.errors import InputError, ToleranceError

if TYPE_CHECKING:
    import numpy as np

EXAMPLES = examples(
    "verify engines/stdlib-bytes",
    "verify engines/stdlib-bytes --text README.md --segments 200",
    "verify engines/stdlib-bytes --random 1 --segments 32 --segment-len 7 --batch-size 3",
    "verify engines/stdlib-bytes --checkpoint models/stdlib-bytes --json",
    "verify engines/stdlib-bytes --bisect",
)


@click.command(epilog=EXAMPLES)
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option("--checkpoint", metavar="CKPT", type=click.Path(path_type=Path), help="The judge; the bundle's own else.")
@click.option(
    "--adapter",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Its adapter; the recorded one else.",
)
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="Text to run; - for stdin.")
@click.option("--ids", "ids_file", type=click.Path(path_type=Path), help="Token ids, [n] or [B, n], as .npy.")
@click.option("--random", "seed", type=int, metavar="SEED", help="Random tokens.")
@click.option("--segments", type=int, default=64, help="Segments to compare.")
@click.option("--segment-len", type=int, help="Tokens per segment; the bundle's when not given.")
@click.option("--batch-size", type=int, default=1, help="Streams run together.")
@click.option("--head", help="Head to compare; the bundle's first when not given.")
@click.option("--backend", metavar="NAME", help="What runs the bundle; the fastest that works here else: see doctor.")
@click.option("--bisect", is_flag=True, help="On failure find the layer, the node and the likely cause.")
@pretokenized_option
@json_option
def command(
    bundle: Path,
    text_file: Path | None,
    ids_file: Path | None,
    seed: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare a bundle with the model it was exported from, over many segments.

    Exits with 1 when something is out of tolerance, naming the first segment and layer; with --bisect also
    the node that loses the accuracy, its PyTorch module, what it gives, what it should give, and why.
    """
    text, ids = _tokens(text_file, ids_file, seed)

    from txl_export.verification import render, verify

    with progress() as report:
        result = verify(
            bundle,
            text=text,
            ids=ids,
            random=seed,
            progress=lambda done, total: report("comparing segments", done, total),
            **options,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        render(result, console(markup=True))
    if not result.passed:
        where = f"; {result.bisect.line}" if result.bisect else ""
        raise ToleranceError(f"{result.failure or 'out of tolerance'}{where}")


def _tokens(text_file: Path | None, ids_file: Path | None, seed: int | None) -> tuple[bytes | None, np.ndarray | None]:
    if sum(x is not None for x in (text_file, ids_file, seed)) > 1:
        raise InputError("--text, --ids and --random each choose the tokens: give one of them")
    text = None if text_file is None else read_text(text_file)
    ids = None if ids_file is None else read_ids(ids_file, max_rank=2)
    return text, ids
