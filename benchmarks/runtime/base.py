"""What the measurements share: the bundle, a session with a full memory, and times that alternate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import txl_export
from benchmarks.shapes import CACHE, make_checkpoint, open_shape
from txl_export.backends.ring import RingStreams
from txl_export.bundle import MANIFEST
from txl_export.cost import call_cost
from txl_export.precision import PrecisionPolicy
from txl_export.runtime import Engine, Session

SHAPE, MEM_LEN, SEGMENT_LENS = "enwik8-base", 3800, (1, 8, 64, 128)
MEM_LENS = (128, 640, 1600, 3800)

Row = dict[str, Any]


def bundle(precision: str = "fp32") -> Path:
    """The folder of the bundle that is measured, exported where it is missing; one serves all M."""
    shape = open_shape(SHAPE)
    out = CACHE / "runtime" / f"{SHAPE}-{precision}-{shape.digest[:12]}"
    if not (out / MANIFEST).is_file():
        make_checkpoint(shape)
        checkpoint = txl_export.load_checkpoint(shape.checkpoint)
        txl_export.export(
            checkpoint,
            out,
            mem_len=MEM_LEN,
            segment_lens=SEGMENT_LENS,
            segment_len=64,
            precision=precision,
            calibration=None if precision == "fp32" else PrecisionPolicy(precision),  # random weights choose nothing
        )
    return out


def full_session(engine: Engine, batch_size: int = 1, mem_len: int | None = None) -> Session:
    """A session whose streams have read three memories, at positions of their own, and remember random rows."""
    session, rng = engine.session(batch_size, mem_len), np.random.default_rng(0)
    streams = session._streams
    assert isinstance(streams, RingStreams)
    M = streams.info.mem_len
    streams.ring.positions[:] = streams.ring.written[:] = 3 * M + rng.integers(0, M, batch_size)
    rows = rng.standard_normal(streams.buffer.shape[2:], dtype=np.float32)
    for tensor in streams.buffer:
        tensor[...] = rows
    return session


def feeding(session: Session, length: int) -> Callable[[], object]:
    """A call that feeds `length` random tokens to each stream, answers in one buffer."""
    ids = np.random.default_rng(1).integers(0, session.info.config.vocab_size, (session.batch_size, length))
    out = session.feed(ids, segment_len=max(length, 1))
    return lambda: session.feed(ids, segment_len=length, out=out)


def alternate(calls: Mapping[str, Callable[[], object]], rounds: int, each: int) -> dict[str, list[float]]:
    """Milliseconds, the median of `each` calls, of every round; calls take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            found[name].append(median(_milliseconds(call) for _ in range(each)))
    return found


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started) / 1e6


def least_bytes(batch_size: int, mem_len: int) -> int:
    """Bytes that a call of one token reads at least."""
    return call_cost(open_shape(SHAPE).config, mem_len, 1, batch_size).bytes_read


def least_flops(batch_size: int, mem_len: int) -> int:
    """FLOPs of a call of one token."""
    return call_cost(open_shape(SHAPE).config, mem_len, 1, batch_size).total_flops


def spread(values: list[float], digits: int = 2) -> str:
    """Median, lowest and highest."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
