"""`python -m benchmarks.runtime [PART...]`: what the loop of layout `ring` costs. Writes `benchmarks/RUNTIME.md`."""

from __future__ import annotations

import inspect
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click

from benchmarks.half import table
from benchmarks.runtime.base import MEM_LEN, SEGMENT_LENS, SHAPE, bundle
from benchmarks.runtime.parts import PARTS
from txl_export.benchmarking import machine
from txl_export.errors import InputError
from txl_export.files import read_json, write_atomic, write_json

FOLDER = Path(__file__).resolve().parents[1]
PAGE, DATA = FOLDER / "RUNTIME.md", FOLDER / "runtime.json"


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--worker", is_flag=True, hidden=True)
def command(parts: tuple[str, ...], worker: bool) -> None:
    """Measure all parts, or those named, each in a process of its own, and write the page anew."""
    if worker:
        for row in PARTS[parts[0]][1]():
            click.echo(json.dumps(row))
        return
    bundle()
    found = read_json(DATA, InputError) if DATA.exists() else {}
    for name in parts or tuple(PARTS):
        click.echo(f"measuring {name}", err=True)
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.runtime", name, "--worker"],
            stdout=subprocess.PIPE, text=True, check=True, cwd=FOLDER.parent,
        )  # fmt: skip
        found[name] = [json.loads(line) for line in run.stdout.splitlines()]
        write_json(DATA, found)
        write_atomic(PAGE, _page(found).encode())
        click.echo(run.stdout, err=True)


def _page(found: dict[str, list[dict[str, object]]]) -> str:
    about, lengths = machine.describe(), ", ".join(map(str, SEGMENT_LENS))
    sections = []
    for name, (title, part) in PARTS.items():
        if rows := found.get(name):
            columns = tuple(rows[0])
            body = table(columns, [tuple(str(row[c]) for c in columns) for row in rows])
            about_part = inspect.cleandoc(part.__doc__ or "")
            sections.append(f"## {title}\n\n`python -m benchmarks.runtime {name}`: {about_part}\n\n{body}\n")
    return f"""# What the loop of layout `ring` costs

Made by

    python -m benchmarks.runtime

on {about["cpu"]}, {about["cores"]} cores, Python {platform.python_version()},
onnxruntime {metadata.version("onnxruntime")}; {SHAPE} with random weights, fp32, one bundle of M = {MEM_LEN} and call
lengths {lengths} unless a table says otherwise, memories full, a thread for each core. Medians, with the lowest and
highest of the rounds; what a table compares took turns within one process. Limits are bytes read once, or products
computed, at the rates measured right before (`txl_export.benchmarking.rates`).

{chr(10).join(sections)}"""


if __name__ == "__main__":
    command()
