"""The commands that make a bundle, its figures and its report again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from txl_export.bundle import CHECKPOINT, Bundle
from txl_export.command_words import override_words
from txl_export.reporting.words import clean
from txl_export.verification.report import Report


def command(*words: object) -> str:
    """A line for a shell: txl-export and these words, quoted where need be."""
    return shlex.join(["txl-export", *map(clean, words)])


def export_command(bundle: Bundle) -> str:
    """How the bundle was exported, as far as its manifest tells; CKPT stands for a checkpoint that is gone."""
    m = bundle.manifest
    kept = bundle.judge_path == bundle.path / CHECKPOINT
    words: list[object] = ["export", "CKPT" if kept else bundle.judge_path or "CKPT", "-o", bundle.path]
    words += ["--mem-len", m.mem_len, "--segment-lens", ",".join(dict.fromkeys(str(g.segment) for g in m.graphs))]
    words += ["--layout", m.layout, "--precision", m.precision, "--head", ",".join(m.heads)]
    words += ["--segment-len", m.segment_len, "--top-k", m.top_k, *(["--rewind", m.rewind] if m.rewind else [])]
    words += [*(["--keep-checkpoint"] if kept else [])]
    overrides = {k: v for k, v in (m.judge.get("overrides") or {}).items() if k != "mem_len"}  # said above
    words += override_words(overrides)
    if not kept:
        words += [word for folder in bundle.judge_adapters for word in ("--adapter", folder)]
    return command(*words)


def verify_command(bundle: Path, report: Report | None) -> str:
    """How a verification like this one is made; FILE stands for a text whose name it does not tell."""
    if report is None:
        return command("verify", bundle, "--text", "FILE", "--json") + " > verify.json"
    seed = report.source.rpartition("seed ")[2]
    source = {"text": ["--text", "FILE"], "ids": ["--ids", "FILE.npy"]}.get(report.source, ["--random", seed])
    numbers = ["--segments", len(report.segments), "--segment-len", report.segment_len]
    words = [*source, *numbers, "--batch-size", report.batch_size, "--head", report.head, "--backend", report.backend]
    return command("verify", bundle, *words, "--json") + " > verify.json"


def bench_command(bundle: Path, mem_lens: Sequence[int], *more: object) -> str:
    """How figures for these lengths are made."""
    return command("bench", bundle, "--mem-lens", ",".join(map(str, mem_lens)), *more, "-o", "bench.json")


def report_command(bundle: Path) -> str:
    """How the report is made of figures that are there."""
    return command("report", bundle, "-o", "report.html", "--verify", "verify.json", "--bench", "bench.json")
