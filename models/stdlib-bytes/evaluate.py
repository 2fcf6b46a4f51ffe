"""What memory is worth to the shipped model: bits per byte at several memory lengths, on text it never saw."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import torch
from corpus import TEST, VALIDATION, digest, held_out_text, lanes, topics_text
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from txl_export.checkpoints import load_checkpoint
from txl_export.files import write_atomic
from txl_export.reference import TransformerXL

HERE = Path(__file__).resolve().parent
CARD, PICTURE = HERE / "README.md", HERE / "memory"
SEGMENT = 128
MEM_LENS = (0, 64, 128, 256, 512, 1024)
CLAMP_LENS, CLAMP_MEM_LENS = (-1, 384, 512, 768, 1024), (512, 1024)

# Texts by the title of their column.
TEXTS: dict[str, Callable[[], bytes]] = {
    "held-out modules": lambda: held_out_text(TEST),
    "pydoc topics": topics_text,
    "validation modules": lambda: held_out_text(VALIDATION),
}
# Bits per byte by the row's label, then by column.
Results = dict[str, dict[str, float]]


@torch.inference_mode()
def bits_per_byte(model: TransformerXL, ids: Tensor, mem_len: int, progress: Progress) -> float:
    """Mean bits per byte of lanes [B, n], read in segments with the memory carried, summed in float64."""
    memory, total, n = model.initial_memory(len(ids), mem_len), 0.0, ids.shape[1] - 1
    task = progress.add_task(f"M = {mem_len}, clamp_len {model.config.clamp_len}", total=n)
    for start in range(0, n, SEGMENT):
        piece = ids[:, start : start + SEGMENT + 1].long()
        log_probs, memory = model.target_log_probs(piece[:, :-1], piece[:, 1:], memory, mem_len)
        total -= log_probs.double().sum().item()
        progress.update(task, completed=min(start + SEGMENT, n))
    return total / math.log(2) / (len(ids) * n)


def runs(text: bytes, count: int, most: int) -> Tensor:
    """`count` runs from all over a text, uint8 [count, n], each cut to `most` bytes unless that is 0."""
    found = lanes(text, count)
    return found[:, : most + 1] if most else found


def load(folder: Path, clamp_len: int | None = None) -> TransformerXL:
    """The model, with another `clamp_len` where one is given."""
    return TransformerXL.from_checkpoint(
        load_checkpoint(folder, None, {} if clamp_len is None else {"clamp_len": clamp_len})
    )


def write_table(results: Results, head: str, name: str) -> None:
    """Put the results between a pair of the card's markers; raises ClickException where there are none."""
    columns = list(next(iter(results.values())))
    lines = [f"| {head} | " + " | ".join(columns) + " |", "| ---: |" + " ---: |" * len(columns)]
    lines += [
        f"| {row} | " + " | ".join(f"{bits:.3f}" for bits in cells.values()) + " |" for row, cells in results.items()
    ]
    begin, end = f"<!-- evaluate.py {name}: begin -->", f"<!-- evaluate.py {name}: end -->"
    before, found, rest = CARD.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise click.ClickException(f"{CARD} lacks {begin} and {end}: put them where the table belongs")
    write_atomic(CARD, "\n".join([before + begin, *lines, end + after]).encode())


def show(results: Results, head: str, as_json: bool, texts: dict[str, bytes]) -> None:
    """Print the results."""
    if as_json:
        about = {name: {"bytes": len(text), "digest": digest(text)} for name, text in texts.items()}
        value = {"python": platform.python_version(), "segment": SEGMENT, "texts": about}
        print(json.dumps(value | {"bits_per_byte": results}, indent=2))
        return
    table = Table(head, *next(iter(results.values())), title="bits per byte")
    for row, cells in results.items():
        table.add_row(row, *(f"{bits:.4f}" for bits in cells.values()))
    Console().print(table)


def draw(results: Results, texts: dict[str, bytes]) -> None:
    """The card's picture, SVG and PNG."""
    from txl_export.benchmarking.table import Quality, Table
    from txl_export.reporting import pictures, saving

    found = tuple(
        Quality("stdlib-bytes", int(row), SEGMENT, name, len(texts[name]), bits * math.log(2), len(texts[name]))
        for row, cells in results.items()
        for name, bits in cells.items()
    )
    figure = pictures.quality(Table((), {}, torch.get_num_threads(), 0, found))
    if figure is not None:
        saving.save(figure, PICTURE)


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Measure bits per byte in float32 with the reference model, in segments of 128 bytes."""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--checkpoint", type=click.Path(exists=True, path_type=Path), default=HERE, help="Folder."),
        click.option("--runs", "count", type=click.IntRange(1), default=8, help="Runs that a text is cut into."),
        click.option("--bytes", "most", type=click.IntRange(0), default=20_480, help="Of each run; 0 for all."),
        click.option("--threads", type=click.IntRange(1), default=2, help="CPU threads."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--update-card", is_flag=True, help="Also write what the card shows of it."),
    ):
        function = option(function)
    return function


@main.command()
@click.option("--mem-len", "mem_lens", type=click.IntRange(0), multiple=True, default=MEM_LENS, help="M.")
@_options
def memory(
    mem_lens: Sequence[int],
    checkpoint: Path,
    count: int,
    most: int,
    threads: int,
    as_json: bool,
    update_card: bool,
) -> None:
    """Memory lengths on the held-out modules and the pydoc topics; the card's first table and its picture."""
    torch.set_num_threads(threads)
    model = load(checkpoint)
    texts = {name: TEXTS[name]() for name in ("held-out modules", "pydoc topics")}
    with Progress(console=Console(stderr=True)) as progress:
        results = {
            str(M): {name: bits_per_byte(model, runs(text, count, most), M, progress) for name, text in texts.items()}
            for M in mem_lens
        }
    show(results, "memory M", as_json, texts)
    if update_card:
        write_table(results, "memory M", "memory")
        draw(results, texts)


@main.command()
@click.option("--clamp-len", "clamp_lens", type=int, multiple=True, default=CLAMP_LENS, help="-1 for none.")
@click.option("--mem-len", "mem_lens", type=click.IntRange(0), multiple=True, default=CLAMP_MEM_LENS, help="M.")
@_options
def clamp(
    clamp_lens: Sequence[int],
    mem_lens: Sequence[int],
    checkpoint: Path,
    count: int,
    most: int,
    threads: int,
    as_json: bool,
    update_card: bool,
) -> None:
    """Values of clamp_len on the validation modules; the card's second table."""
    torch.set_num_threads(threads)
    texts = {"validation modules": TEXTS["validation modules"]()}
    ids = runs(texts["validation modules"], count, most)
    with Progress(console=Console(stderr=True)) as progress:
        results = {
            "none" if n < 0 else str(n): {
                f"M = {M}": bits_per_byte(load(checkpoint, n), ids, M, progress) for M in mem_lens
            }
            for n in clamp_lens
        }
    show(results, "clamp_len", as_json, texts)
    if update_card:
        write_table(results, "clamp_len", "clamp")


if __name__ == "__main__":
    main()
