"""A bundle of this package on a GPU backend: every point with CUDA graphs and without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.plan import OURS, OURS_DIRECT, Case
from benchmarks.gpu.timing import Turn, between_events, calls_in, wall
from txl_export import Engine, Session
from txl_export.backends.device.arrays import DeviceArray
from txl_export.backends.device.calls import Cuda, Owned
from txl_export.benchmarking.worker import fill

_COPIES = 20


def measure(case: Case, bundle: Path, backend: str, turn: Turn) -> Iterator[dict[str, Any]]:
    """Time every point of a case."""
    engines = {way: _loaded(bundle, backend, way == OURS) for way in (OURS, OURS_DIRECT)}
    for length, batch in case.points:
        for way, engine in engines.items():
            session = engine.session(batch)
            fill(session, np.random.default_rng(0), alike=True)
            found = _timed(session, length, case.head, turn)
            yield {"way": way, "segment_len": length, "batch_size": batch, "off": None, **found}
            del session


def _loaded(bundle: Path, backend: str, capture: bool) -> Engine:
    """An engine of its own for each way: some backends ask when they load a graph."""
    engine = Engine.load(bundle, backend)
    model: Any = engine.model
    model.capture = capture
    return engine


def _timed(session: Session, length: int, head: str, turn: Turn) -> dict[str, Any]:
    rng, spec = np.random.default_rng(1), session.info.head(head)
    ids = rng.integers(0, session.info.config.vocab_size, (session.batch_size, length))
    more: dict[str, Any] = {"segment_len": length, "head": head}
    told = {**more, "targets": ids} if spec.takes_targets else more
    out = session.feed(ids, **told)
    walls = wall(lambda: session.feed(ids, **told, out=out), turn)
    side: Any = session._streams.device
    cuda, stream = side.cuda, side.stream
    on_device = to_device(cuda, stream, ids)
    told = {**more, "targets": on_device} if spec.takes_targets else more
    answer = DeviceArray.empty(cuda, stream, out.shape, out.dtype.str)

    def mark() -> Owned:
        event: Owned = cuda.event(timed=True)
        cuda.record(event, stream)
        return event

    pairs: Any = between_events(
        lambda: session.feed(on_device, **told, out=answer),
        mark,
        lambda: cuda.wait(stream),
        turn,
        calls_in(turn, float(np.median(walls))),
    )
    return {"wall_ms": walls, "device_ms": [cuda.milliseconds(a, b) for a, b in pairs]}


def to_device(cuda: Cuda, stream: Owned, values: np.ndarray) -> DeviceArray:
    """A copy on the GPU, there when this returns."""
    array = DeviceArray.empty(cuda, stream, values.shape, values.dtype.str)
    pinned, owned = cuda.pinned(values.nbytes)
    pinned[:] = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    cuda.copy(array.address, pinned.ctypes.data, values.nbytes, stream)
    cuda.wait(stream)
    owned.close()
    return array


def bandwidth(most: int = 1 << 30) -> dict[str, Any]:
    """Bytes per second that the GPU reads and writes when it copies within its own memory, the best of several."""
    cuda = Cuda()
    stream, size = cuda.stream(), min(most, cuda.room()[0] // 4)
    blocks = [cuda.allocate(size, "measuring the bandwidth") for _ in range(2)]
    for block in blocks:
        cuda.fill(block.address, 1, size, stream)
    marks = [cuda.event(timed=True) for _ in range(_COPIES + 1)]
    cuda.record(marks[0], stream)
    for mark in marks[1:]:
        cuda.copy(blocks[0].address, blocks[1].address, size, stream)
        cuda.record(mark, stream)
    cuda.wait(stream)
    ms = min(cuda.milliseconds(a, b) for a, b in itertools.pairwise(marks))
    return {"bytes": size, "bytes_per_second": 2 * size / (ms / 1e3)}
