"""A worker that runs this package's own models: a bundle or a checkpoint on one of the backends.

Its "load" message holds "source" (path), "origin" and "overrides" (of a checkpoint), "backend", "mem_len",
"segment_len", "batch_size", "threads" and "head".
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.backends.base import Streams
from txl_export.backends.ring import RingStreams
from txl_export.benchmarking.serving import serve
from txl_export.bundle import MANIFEST, Bundle
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.layouts import memory_bytes, state_specs
from txl_export.runtime.engine import Engine
from txl_export.runtime.session import Session

Prepared = tuple[np.ndarray, "np.ndarray | None"]


class Job:
    """A loaded cell: streams on an engine, and the call that is timed."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Load the cell of a "load" message, with the graphs that its calls need; raises TxlError."""
        self.L, self.B, self.head = spec["segment_len"], spec["batch_size"], spec["head"]
        source = _open(spec)
        self.engine = Engine.load(source, spec["backend"], spec["mem_len"], threads=spec["threads"])
        self.info, self.session = self.engine.info, self.engine.session(self.B)
        for length in call_lengths(self.session._streams, self.L, self.info.head(self.head).last_only):
            self.engine.model.prepare(self.head, length, self.B)
        self.memory_bytes = stream_bytes(source, self.engine)
        self.rng = np.random.default_rng(0)
        # One buffer for all answers, so that no sample pays for fresh pages (head `top_k` takes none).
        self.out: np.ndarray | None = None

    def prepare(self) -> Prepared:
        """Random ids [B, L], and targets for a head that takes them."""
        ids = self.rng.integers(0, self.info.config.vocab_size, (self.B, self.L))
        head = self.info.head(self.head)
        if not head.takes_targets:
            return ids, None
        return ids, ids[:, -1:] if head.last_only else ids

    def call(self, prepared: Prepared) -> Any:
        """Feed one segment."""
        ids, targets = prepared
        answer = self.session.feed(ids, self.L, self.head, targets, self.out)
        self.out = answer if isinstance(answer, np.ndarray) else None
        return answer

    def fill(self) -> int:
        """Give every stream M random rows: what they hold changes no time, and no graph but the cell's is loaded."""
        return fill(self.session, self.rng)


def fill(session: Session, rng: np.random.Generator, alike: bool = False) -> int:
    """Give every stream M random rows; returns how many each holds. `alike`: the same for all streams."""
    info, state = session.info, session._streams.state()
    for spec in state_specs(info.layout, info.config, info.mem_len):
        shape, axis = list(state[spec.input].shape), 1 + spec.row_axis
        # A state that is written in place has the rows of `rewind` too.
        shape[axis] = max(shape[axis], info.mem_len)
        rows = rng.standard_normal([1, *shape[1:]] if alike else shape, dtype=np.float32)
        state[spec.input] = np.broadcast_to(rows.astype(state[spec.input].dtype, copy=False), shape)
    state.pop("oldest", None)  # of a ring: all rows are there
    if "filled" in state:  # of backends whose tensors grow with the memory
        state["filled"] = np.full_like(state["filled"], info.mem_len)
    state["positions"] = np.full_like(state["positions"], info.start + info.mem_len)
    session._load(state)
    return int(session.positions.min())


def stream_bytes(source: Bundle | Checkpoint, engine: Engine) -> int:
    """Bytes of memory of a stream, when it is full."""
    info = engine.info
    if isinstance(source, Bundle):
        m, sizes = source.manifest, getattr(engine.model, "sizes", None)
        if sizes is None or sizes.rows is None:  # engines have the rows of the bundle's own M, however few count
            m = dataclasses.replace(m, mem_len=info.mem_len)
        return sum(s.nbytes for s in m.states)
    return memory_bytes(info.layout, info.config, info.mem_len, info.memory_dtype)


def call_lengths(streams: Streams, n: int, last_only: bool) -> set[int]:
    """Lengths of the calls that feeds of n tokens take, sooner or later; the streams are at their start afterwards.

    A ring cuts the calls that would cross its end, until its slots repeat.
    """
    counts = np.full(streams.batch_size, n)
    if not isinstance(streams, RingStreams):
        return {call.length for call in streams.plan(counts, n, last_only)}
    found, ring = set(), streams.ring
    ring.positions += ring.mem_len
    for _ in range(ring.rows // math.gcd(ring.rows, n)):
        for call in streams.plan(counts, n, last_only):
            found.add(call.length)
            ring.advance(call.valid, call.length)
    streams.reset(np.arange(streams.batch_size))
    return found


def _open(spec: dict[str, Any]) -> Bundle | Checkpoint:
    path = Path(spec["source"])
    if (path / MANIFEST).is_file():
        return Bundle.open(path, check_files=False)  # whoever asks has just checked or written it
    return load_checkpoint(path, spec["origin"], spec["overrides"], adapter=spec.get("adapters", ()))


if __name__ == "__main__":
    serve(Job)
