"""The parts of a report that hold pictures: each with its words, or with the way to get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txl_export.benchmarking.table import Table
from txl_export.reporting import accuracy, captions, pictures
from txl_export.reporting.choice import fastest_rows, latency_rows, throughput_rows
from txl_export.reporting.commands import bench_command, verify_command
from txl_export.verification.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A picture of the report.

    Attributes:
        name: of its files, and of what is inside.
        figure: drawn.
        caption: in words, by sentence.
    """

    name: str
    figure: Figure
    caption: tuple[str, ...]


@dataclass(frozen=True)
class Absent:
    """What there is no picture of.

    Attributes:
        name: of the picture that would be here.
        why: in words.
        command: how to get it; empty where there is nothing to get.
    """

    name: str
    why: str
    command: str = ""


Part = Picture | Absent


def memory_parts(table: Table | None, bundle: Path, mem_lens: list[int]) -> Iterator[Part]:
    """What memory is worth and costs."""
    figure = pictures.memory_tradeoff(table) if table else None
    if table and figure:
        rows = fastest_rows(table)
        words = (*captions.quality_caption(table), *captions.latency_caption(table, rows))
        yield Picture("memory", figure, words)
        return
    figure = pictures.quality(table) if table else None
    if table and figure:
        yield Picture("quality", figure, tuple(captions.quality_caption(table)))
        why = "Its price in time was not measured at more than one memory length."
    else:
        why = "What longer memory is worth on a text was not measured."
    yield Absent("memory", why, bench_command(bundle, mem_lens, "--text", "FILE"))


def speed_parts(table: Table | None, bundle: Path, mem_lens: list[int]) -> Iterator[Part]:
    """Latency for each number of streams, and throughput."""
    if table is None or not table.rows:
        yield Absent("latency", "No calls were timed.", bench_command(bundle, mem_lens))
        return
    streams = sorted({row.batch_size for row in table.rows})
    for n in streams:
        figure = pictures.latency(table, n, "Time per call" if n == 1 else f"Time per call, {n} streams")
        assert figure
        caption = captions.latency_caption(table, latency_rows(table, n))
        yield Picture("latency" if n == streams[0] else f"latency-{n}", figure, tuple(caption))
    figure = pictures.throughput(table)
    if figure:
        caption = captions.throughput_caption(table, throughput_rows(table))
        yield Picture("throughput", figure, tuple(caption))
    else:
        why = "How throughput grows with the number of streams was not measured."
        yield Absent("throughput", why, bench_command(bundle, mem_lens, "--batch-sizes", "1,4,16"))


def accuracy_parts(report: Report | None, bundle: Path) -> Iterator[Part]:
    """Errors by segment and by layer."""
    if report is None:
        yield Absent(
            "drift", "The bundle was not compared with the model it was exported from.", verify_command(bundle, None)
        )
        return
    drawn: tuple[tuple[str, Callable[[Report], Figure | None], Callable[[Report], list[str]], str], ...] = (
        ("drift", accuracy.drift, captions.drift_caption, "Every answer equals the trained model's bit for bit."),
        ("layers", accuracy.memory_by_layer, captions.layers_caption, _equal_memory(report)),
    )
    for name, draw, words, equal in drawn:
        figure = draw(report)
        yield Picture(name, figure, tuple(words(report))) if figure else Absent(name, equal)


def _equal_memory(report: Report) -> str:
    if not report.mem_len:
        return "The model has no memory to compare (M = 0)."
    finite = all(share == 0 for s in report.segments for share in s.memory)
    same = "The memory of every layer equals the trained model's bit for bit."
    return same if finite else "No layer's memory holds finite differences to draw."
