"""Planted figures: tables whose numbers the tests know, and verifications of a small bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from txl_export.benchmarking import Row, Table
from txl_export.benchmarking.table import Limit, Quality, Ratio
from txl_export.checkpoints import Checkpoint
from txl_export.verification import Report, SegmentResult, verify
from txl_export.verification.measures import Measures
from txl_export.verification.trend import fit

MACHINE = {"cpu": "Some CPU", "cores": 2, "system": "Linux", "versions": {"python": "3.11", "numpy": "2.0"}}
TARGET = "engines/some"


def row(
    backend: str = "onnxruntime",
    mem_len: int = 128,
    ms: float = 2.0,
    segment_len: int = 1,
    batch_size: int = 1,
    target: str = TARGET,
    layout: str | None = None,
    limit: float | None = None,
    ratio: Ratio | None = None,
    spread: float = 0.1,
) -> Row:
    """A row whose three rounds take ms - spread, ms and ms + spread."""
    return Row(
        target=target,
        backend=backend,
        layout=layout or ("hidden" if backend == "eager" else "kv"),
        mem_len=mem_len,
        segment_len=segment_len,
        batch_size=batch_size,
        threads=2,
        head="log_probs",
        filled=mem_len,
        load_ms=900.0,
        first_ms=950.0,
        peak_rss=300_000_000,
        memory_bytes=1000 * mem_len,
        rounds_ms=((ms * (1 - spread),) * 3, (ms,) * 3, (ms * (1 + spread),) * 3),
        ratio=ratio,
        limit=None if limit is None else Limit(int(limit * 1e6), 1, 1e9, 1e12),
    )


def table(rows: Sequence[Row], quality: Sequence[Quality] = (), **options: Any) -> Table:
    return Table(tuple(rows), MACHINE, 2, 3, tuple(quality), **options)


def grid(
    backends: Sequence[str] = ("eager", "onnxruntime"),
    mem_lens: Sequence[int] = (64, 128, 256),
    segment_lens: Sequence[int] = (1,),
    batch_sizes: Sequence[int] = (1,),
    **options: Any,
) -> list[Row]:
    """Rows whose times tell backend, M, L and B apart."""
    return [
        row(b, m, (i + 1) * (1 + m / 100) * (1 + length / 10) * (1 + n / 4), length, n, **options)
        for m in mem_lens
        for length in segment_lens
        for n in batch_sizes
        for i, b in enumerate(reversed(backends))
    ]


def read(
    values: dict[int, float], text: str = "prose", tokens: int = 1000, size: int = 1000, target: str = TARGET
) -> list[Quality]:
    """Figures of quality in bits per byte by M."""
    nats = {m: bits * 0.6931471805599453 * size / tokens for m, bits in values.items()}
    return [Quality(target, m, 64, text, tokens, n, size) for m, n in nats.items()]


def verification(errors: Sequence[float], mem_len: int = 24, memory: Sequence[float] = (1e-7, 2e-6)) -> Report:
    """A verification with these largest errors, of a model of as many layers as `memory` has."""
    segments = tuple(
        SegmentResult(i, 8 * i, 8, Measures(e, e / 2, 1e-9, 1.0, 1.0, 10.0, 10.0, 8), tuple(memory))
        for i, e in enumerate(errors)
    )
    trend = fit(list(errors), [8 * i for i in range(len(errors))], len(memory) * mem_len, 8)
    return Report(
        bundle="b", checkpoint="c", backend="onnxruntime", layout="kv", precision="fp32", head="log_probs",
        mem_len=mem_len, segment_len=8, batch_size=1, source="text", real=True, segments=segments, trend=trend,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Real:
    """A small bundle and what verify says of it."""

    bundle: Path
    checkpoint: Checkpoint
    report: Report


@pytest.fixture(scope="session")
def real(exported: Callable[..., Any]) -> Real:
    found = exported("stepping", "kv", (1, 8))
    return Real(found.path, found.checkpoint, verify(found.path, found.checkpoint, random=0, segments=14))
