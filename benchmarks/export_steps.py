"""The steps of `benchmarks.exports`, each run in a process of its own: `python -m benchmarks.export_steps STEP FOLDER`.

A step does one thing with the model in FOLDER and prints, as its last line, what it took as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.benchmarking.serving import peak_rss

HEADS = ("target", "top_k")
LAYOUT = "kv"
SEGMENT_LENS = (1, 64)
FEEDS = (64, 64, 1, 1, 64, 1)  # tokens, one segment each
CHECKPOINT, BUNDLE, ANSWERS, TASK = "checkpoint", "bundle", "{}.{}.npz", "task.json"


def save(folder: Path, task: dict[str, Any]) -> None:
    """Write random weights as a checkpoint: what the others load has the size of a trained model's file."""
    from txl_export import random_checkpoint
    from txl_export.checkpoints import native

    native.save(folder / CHECKPOINT, random_checkpoint(task["name"]))


def export(folder: Path, task: dict[str, Any]) -> None:
    """Load the checkpoint and export it, one graph for each head and segment length."""
    import txl_export

    checkpoint = txl_export.load_checkpoint(folder / CHECKPOINT)
    txl_export.export(
        checkpoint,
        folder / BUNDLE,
        mem_len=task["mem_len"],
        segment_lens=SEGMENT_LENS,
        layout=LAYOUT,
        head=HEADS,
        cover=False,
    )


def run(folder: Path, task: dict[str, Any]) -> None:
    """Load the bundle and feed segments to one head, in ONNX Runtime."""
    from txl_export import Engine

    _answer(Engine.load(folder / BUNDLE), task, folder / ANSWERS.format(task["head"], "run"))


def judge(folder: Path, task: dict[str, Any]) -> None:
    """The same segments through the reference model."""
    from txl_export import Engine

    engine = Engine.load(folder / CHECKPOINT, backend="eager", mem_len=task["mem_len"])
    for head in HEADS:
        _answer(engine, task | {"head": head}, folder / ANSWERS.format(head, "judge"))


def _answer(engine: Any, task: dict[str, Any], path: Path) -> None:
    """Feed FEEDS from a fresh memory and keep what the head gives: log-probabilities only, equal ones may swap ids."""
    from tests.helpers import random_ids

    session, head = engine.session(), task["head"]
    answers = []
    for i, length in enumerate(FEEDS):
        ids, targets = (random_ids(engine.info.config, 1, length, seed) for seed in (i, 1000 + i))
        given = {"targets": targets} if head == "target" else {}
        found = session.feed(ids, head=head, **given)
        answers.append(found.log_probs if head == "top_k" else found)
    np.savez(path, *answers)


STEPS: dict[str, Callable[[Path, dict[str, Any]], None]] = {"save": save, "export": export, "run": run, "judge": judge}
# What a step imports before it starts: the memory that this takes is no model's.
IMPORTS = {"save": ("safetensors.numpy",), "export": ("torch", "onnxscript"), "run": ("onnxruntime",), "judge": ()}


def main(step: str, folder: Path) -> None:
    """Run a step and print {"seconds", "peak", "imports"}, the most resident memory in bytes."""
    task = json.loads((folder / TASK).read_text(encoding="utf-8"))
    for module in IMPORTS[step]:
        __import__(module)
    imports, started = peak_rss(), time.perf_counter()
    STEPS[step](folder, task)
    took = time.perf_counter() - started
    print(json.dumps({"seconds": took, "peak": peak_rss(), "imports": imports}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
