"""Memory rows by age, as the reference has them, and the tensors in which a layout's graphs have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from txl_export.backends.base import Streams
from txl_export.backends.ring import RingStreams
from txl_export.bundle import Manifest
from txl_export.layouts import StateSpec
from txl_export.ring import UNBOUNDED, Ring
from txl_export.verification.bisection.calls import Call

Arrays = dict[str, np.ndarray]


class Rows(Protocol):
    """How a layout keeps rows; all streams of a verification stand at the same position."""

    def inputs(self, rows: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """What a graph takes for a call beside tokens and positions, from rows by age in the graph's types."""

    def by_age(self, outputs: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """The newest M rows of each memory tensor after a call, oldest first, by the graph's output names."""

    def order(self, call: Call) -> np.ndarray | None:
        """The columns of `visible` by age, the call's own tokens last; None where they stand so."""


class Ordered:
    """Tensors that hold M rows by age."""

    def __init__(self, manifest: Manifest) -> None:
        """Take the tensors' names."""
        self._states = manifest.states

    def inputs(self, rows: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """See `Rows`."""
        del call
        return dict(rows)

    def by_age(self, outputs: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """See `Rows`."""
        del call
        return {s.output: outputs[s.output] for s in self._states if s.output in outputs}

    def order(self, call: Call) -> np.ndarray | None:
        """See `Rows`."""
        del call
        return None


class InPlace:
    """Buffers that are written round and round."""

    def __init__(self, manifest: Manifest) -> None:
        """Take M, the ring's sizes and the window."""
        self._manifest = manifest
        self._window = manifest.dialect.window(manifest.config, manifest.mem_len)

    def _ring(self, call: Call, consumed: int) -> Ring:
        m = self._manifest
        ring = Ring(call.batch_size, m.mem_len, m.ring, m.start)
        ring.positions += consumed
        return ring

    def inputs(self, rows: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """See `Rows`."""
        ring = self._ring(call, call.start)
        window = np.full(call.batch_size, UNBOUNDED if self._window is None else self._window)
        found = {"visible_from": ring.visible_from(call.step.offsets), "window": window}
        for spec in self._manifest.states:
            given = rows[spec.input]
            buffer = np.zeros((call.batch_size, *spec.shape), given.dtype)
            buffer[_at(spec, ring.place(0, given.shape[1 + spec.row_axis]))] = given
            found[spec.input] = buffer
        return found

    def by_age(self, outputs: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """See `Rows`."""
        place = self._ring(call, call.start + call.valid).place(0, self._manifest.mem_len)
        states = [s for s in self._manifest.states if s.output in outputs]
        return {s.output: outputs[s.output][_at(s, place)] for s in states}

    def order(self, call: Call) -> np.ndarray | None:
        """See `Rows`."""
        rows, start = self._manifest.ring, int(self._ring(call, call.start).slots[0])
        slot = np.arange(self._manifest.rows)
        written = slot < start + call.step.length
        position = slot - start - np.where(written, 0, rows)
        position[(slot >= rows) & ~written] = -2 * slot.size  # nothing of the guard counts but what spills there
        return np.argsort(position, kind="stable")


def _at(spec: StateSpec, rows: np.ndarray) -> tuple[slice | np.ndarray, ...]:
    """Index of some rows of a memory tensor."""
    return (*[slice(None)] * (1 + spec.row_axis), rows)


def rows_for(manifest: Manifest) -> Rows:
    """How a bundle keeps rows."""
    return InPlace(manifest) if manifest.traits.in_place else Ordered(manifest)


def held(streams: Streams) -> Arrays:
    """Copies of a session's memory tensors as a graph takes them, and of positions where graphs advance them."""
    if isinstance(streams, RingStreams):
        rows = np.stack([streams.store.read(b) for b in range(streams.batch_size)], axis=1)
        return {s.input: a for s, a in zip(streams.sizes.states, rows, strict=True)}
    return streams.state()


def places(streams: Streams, call: Call) -> Arrays:
    """What else a graph takes of a session whose rows are written in place."""
    if not isinstance(streams, RingStreams):
        return {}
    seen = streams.ring.visible_from(call.step.offsets)
    return {"positions": streams.positions, "visible_from": seen, "window": streams.window}
