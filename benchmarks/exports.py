"""`python -m benchmarks.exports [NAMES]`: every published configuration exported with random weights, and run.

Each step has a process of its own, whose peak memory is compared with the size of the weights. Results are kept in
`benchmarks/exports.json`, a row for each name, and `benchmarks/EXPORTS.md` is written from them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.export_steps import ANSWERS, BUNDLE, FEEDS, HEADS, LAYOUT, SEGMENT_LENS, TASK
from benchmarks.shapes import ROOT
from txl_export import config_names, named_config
from txl_export.benchmarking import machine
from txl_export.errors import CheckpointError, EnvironmentMismatch, InputError
from txl_export.files import read_json, write_atomic, write_json
from txl_export.weights import count_parameters

RESULTS, TARGET = ROOT / "benchmarks" / "exports.json", ROOT / "benchmarks" / "EXPORTS.md"
# With 3800 tokens the memory of one stream takes as much as the weights, twice over while a call runs.
MOST_MEM_LEN = 1600
LIMIT = 3.0
COLUMNS = (
    "name", "parameters", "weights", "M", "memory",
    "export: peak", "x weights", "run: peak", "x weights", "worst error",
)  # fmt: skip


@dataclass(frozen=True)
class Took:
    """What a step took: seconds, its process's peak of resident memory, and what its imports alone hold, in bytes."""

    seconds: float
    peak: int
    imports: int

    def ratio(self, weights: int) -> float:
        """Peak beyond the imports, in sizes of the weights."""
        return (self.peak - self.imports) / weights


@dataclass(frozen=True)
class Row:
    """A model's results.

    Attributes:
        name: of the configuration.
        parameters: how many.
        mem_len: M of the bundle.
        memory: bytes of one stream's memory; a session holds them twice.
        export: loading the checkpoint and exporting it.
        run: loading the bundle and feeding it, the head that took most.
        worst: largest difference from the reference in a log-probability, over all heads and tokens.
    """

    name: str
    parameters: int
    mem_len: int
    memory: int
    export: Took
    run: Took
    worst: float

    @property
    def weights(self) -> int:
        """Their bytes in float32."""
        return 4 * self.parameters

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Row:
        """Take back what `dataclasses.asdict` gave."""
        return cls(**{**value, "export": Took(**value["export"]), "run": Took(**value["run"])})

    def cells(self) -> tuple[str, ...]:
        """For the table, in the order of COLUMNS."""
        took = (f"{t.peak / 1e9:.2f} GB | {t.ratio(self.weights):.2f}" for t in (self.export, self.run))
        sizes = (f"{self.parameters / 1e6:.0f}M", f"{self.weights / 1e9:.2f} GB", str(self.mem_len))
        return (f"`{self.name}`", *sizes, f"{self.memory / 1e9:.2f} GB", *took, f"{self.worst:.1e}")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--again", is_flag=True, help="Measure names again that have results.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=TARGET, help="The table to write.")
def command(names: tuple[str, ...], again: bool, output: Path) -> None:
    """Export and run configurations (all, or NAMES), those without results first of all."""
    rows = _kept()
    for name in names or config_names():
        if again or name not in rows:
            rows[name] = measure(name)
            write_json(RESULTS, [dataclasses.asdict(rows[n]) for n in sorted(rows)])
    write_atomic(output, page(rows[n] for n in sorted(rows)).encode())
    click.echo(output.read_text(encoding="utf-8"))


def _kept() -> dict[str, Row]:
    rows = map(Row.from_dict, read_json(RESULTS, CheckpointError) if RESULTS.is_file() else ())
    return {row.name: row for row in rows}


def measure(name: str) -> Row:
    """Save, export, run and judge one model, in a temporary folder; raises EnvironmentMismatch where a step dies."""
    config, _ = named_config(name)
    mem_len = min(config.mem_len, MOST_MEM_LEN)
    with tempfile.TemporaryDirectory() as place:
        folder, task = Path(place), {"name": name, "mem_len": mem_len}
        _step("save", folder, task)
        export = _step("export", folder, task)
        runs = [_step("run", folder, task | {"head": head}) for head in HEADS]
        manifest = json.loads((folder / BUNDLE / "manifest.json").read_text(encoding="utf-8"))
        shutil.rmtree(folder / BUNDLE)
        _step("judge", folder, task)
        worst = max(_difference(folder, head) for head in HEADS)
    memory = sum(s["bytes_per_stream"] for s in manifest["states"])
    return Row(name, count_parameters(config), mem_len, memory, export, max(runs, key=lambda t: t.peak), worst)


def _step(step: str, folder: Path, task: dict[str, Any]) -> Took:
    click.echo(f"{task['name']}: {step} {task.get('head', '')}", err=True)
    (folder / TASK).write_text(json.dumps(task), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.export_steps", step, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise EnvironmentMismatch(f"{step} of {task['name']} ended with {ran.returncode}: {last}")
    return Took(**json.loads(ran.stdout.strip().splitlines()[-1]))


def _difference(folder: Path, head: str) -> float:
    """Largest difference between the bundle's answers and the reference's."""
    with (
        np.load(folder / ANSWERS.format(head, "run")) as ours,
        np.load(folder / ANSWERS.format(head, "judge")) as theirs,
    ):
        if ours.files != theirs.files:
            raise InputError(f"head {head} gave {len(ours.files)} answers, the reference {len(theirs.files)}")
        return max(float(np.abs(ours[key] - theirs[key]).max()) for key in ours.files)


def page(rows: Iterable[Row]) -> str:
    """The document: what was measured, and the table."""
    about = machine.describe()
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items() if k in ("torch", "onnxruntime"))
    heads = _listed(f"`{h}`" for h in HEADS)
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(row.cells() for row in rows)]
    return f"""# Published configurations, exported and run

Made by

    python -m benchmarks.exports

on {about["cpu"]}, {about["cores"]} cores, Python {platform.python_version()}, {versions}.

Every configuration with random weights, written as a checkpoint, loaded from there, exported (layout `{LAYOUT}`, fp32,
a graph for each of {_listed(SEGMENT_LENS)} tokens and of the heads {heads}) and run in ONNX Runtime at
B = 1: segments of {_listed(FEEDS)} tokens, one head after the other, each in a process of its own. The
reference model got the same tokens; *worst error* is the largest difference in any log-probability.

*Peak* is the most resident memory that the process had, pages of mapped files included; *x weights* is what goes
beyond Python and its imported packages, in sizes of the weights, and should stay under {LIMIT:g}. *Memory* is what one
stream remembers; a session holds it twice. M is the published one, {MOST_MEM_LEN} at most.

{chr(10).join(f"| {' | '.join(line)} |" for line in lines)}
"""


def _listed(values: Iterable[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}"


if __name__ == "__main__":
    command()
