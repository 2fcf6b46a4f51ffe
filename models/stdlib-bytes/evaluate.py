"""Bits per byte of the shipped model at several memory lengths, on text that it was not trained on."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path

import click
import torch
from corpus import TEST, digest, held_out_text, lanes, topics_text
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from txl_export.checkpoints import load_checkpoint
from txl_export.files import write_atomic
from txl_export.reference import TransformerXL

HERE = Path(__file__).resolve().parent
CARD, BEGIN, END = HERE / "README.md", "<!-- evaluate.py: begin -->", "<!-- evaluate.py: end -->"
SEGMENT = 128
MEM_LENS = (0, 64, 128, 256, 512)
TITLES = {"test": "held-out modules", "topics": "pydoc topics"}

Results = dict[int, dict[str, float]]


@torch.inference_mode()
def bits_per_byte(model: TransformerXL, ids: Tensor, mem_len: int, progress: Progress) -> float:
    """Mean bits per byte of lanes [B, n], read in segments with the memory carried, summed in float64."""
    memory, total, n = model.initial_memory(len(ids), mem_len), 0.0, ids.shape[1] - 1
    task = progress.add_task(f"M = {mem_len}", total=n)
    for start in range(0, n, SEGMENT):
        piece = ids[:, start : start + SEGMENT + 1].long()
        log_probs, memory = model.target_log_probs(piece[:, :-1], piece[:, 1:], memory, mem_len)
        total -= log_probs.double().sum().item()
        progress.update(task, completed=min(start + SEGMENT, n))
    return total / math.log(2) / (len(ids) * n)


def measure(model: TransformerXL, texts: dict[str, bytes], count: int, mem_lens: tuple[int, ...]) -> Results:
    """Bits per byte by memory length, then by text."""
    results: Results = {mem_len: {} for mem_len in mem_lens}
    with Progress(console=Console(stderr=True)) as progress:
        for name, text in texts.items():
            ids = lanes(text, count)
            for mem_len in mem_lens:
                results[mem_len][name] = bits_per_byte(model, ids, mem_len, progress)
    return results


def rich_table(results: Results) -> Table:
    """The results for the terminal."""
    table = Table("memory M", *TITLES.values(), title="bits per byte")
    for mem_len, row in results.items():
        table.add_row(str(mem_len), *(f"{row[name]:.3f}" for name in TITLES))
    return table


def card_table(results: Results) -> str:
    """The results for the card."""
    lines = ["| memory M | " + " | ".join(TITLES.values()) + " |", "| ---: |" + " ---: |" * len(TITLES)]
    for mem_len, row in results.items():
        lines.append(f"| {mem_len} | " + " | ".join(f"{row[name]:.3f}" for name in TITLES) + " |")
    return "\n".join(lines)


def update_card(results: Results, card: Path) -> None:
    """Replace what stands between the card's markers; raises ClickException where there are none."""
    before, begin, rest = card.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise click.ClickException(f"{card} lacks {BEGIN} and {END}: put them where the table belongs")
    write_atomic(card, f"{before}{BEGIN}\n{card_table(results)}\n{END}{after}".encode())


@click.command(context_settings={"show_default": True})
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path), default=HERE, help="Folder.")
@click.option("--mem-len", "mem_lens", type=click.IntRange(0), multiple=True, default=MEM_LENS, help="M.")
@click.option("--lanes", "count", type=click.IntRange(1), default=8, help="Runs that a text is cut into.")
@click.option("--threads", type=click.IntRange(1), default=2, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--update-card", "card", is_flag=True, help="Also write the table into README.md.")
def main(checkpoint: Path, mem_lens: tuple[int, ...], count: int, threads: int, as_json: bool, card: bool) -> None:
    """Measure bits per byte of the model in float32, in segments of 128 bytes at every memory length."""
    torch.set_num_threads(threads)
    model = TransformerXL.from_checkpoint(load_checkpoint(checkpoint))
    texts = {"test": held_out_text(TEST), "topics": topics_text()}
    results = measure(model, texts, count, mem_lens)
    if as_json:
        about = {name: {"bytes": len(text), "digest": digest(text)} for name, text in texts.items()}
        value = {"python": platform.python_version(), "segment": SEGMENT, "texts": about}
        print(json.dumps(value | {"bits_per_byte": results}, indent=2))
    else:
        Console().print(rich_table(results))
    if card:
        update_card(results, CARD)


if __name__ == "__main__":
    main()
