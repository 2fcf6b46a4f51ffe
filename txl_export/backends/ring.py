"""Memory of streams in one buffer that is written in place: layout `ring`, whatever runs the graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from txl_export.backends.base import Arrays, ModelInfo, Streams
from txl_export.bundle import Bundle
from txl_export.calls import Call, Cuts, call_costs, ring_calls
from txl_export.errors import InputError
from txl_export.layouts import StateSpec, ring_rows
from txl_export.ring import UNBOUNDED, Ring
from txl_export.room import require_room, the_memory

POSITIONS, OLDEST = "positions", "oldest"


@dataclass(frozen=True)
class RingSizes:
    """The numbers of a bundle that rings are made with.

    Attributes:
        states: memory tensors at the bundle's M.
        initial: by memory tensor, the row that streams start with.
        guard: G.
        reach: tokens from a segment's start to the end of a call in it, at most.
        rewind: tokens that can be taken back at any time.
    """

    states: Sequence[StateSpec]
    initial: Mapping[str, np.ndarray]
    guard: int
    reach: int
    rewind: int

    @classmethod
    def of(cls, bundle: Bundle) -> RingSizes:
        """Those of a bundle."""
        m = bundle.manifest
        return cls(m.states, bundle.initial_rows(), m.guard, m.reach, m.rewind)


def with_mem_len(info: ModelInfo, mem_len: int | None) -> ModelInfo:
    """What a session that remembers `mem_len` tokens, None for the model's own M, is told; raises InputError."""
    if mem_len is None or mem_len == info.mem_len:
        return info
    if not 0 <= mem_len <= info.mem_len:
        raise InputError(f"mem_len is {mem_len}, expected 0 to {info.mem_len}, what this bundle was exported for")
    info.dialect.window(info.config, mem_len)
    return replace(info, mem_len=mem_len, start=mem_len if info.start else 0)


class RingStreams(Streams):
    """Memory of B streams, [B, H, S + G, d_head] for keys and for values of each layer, in one array.

    Calls that overwrite what `rollback` may need keep a copy of those rows; others keep positions only.
    """

    def __init__(self, info: ModelInfo, sizes: RingSizes, batch_size: int) -> None:
        """Allocate the buffers and put all streams to their start."""
        self.info, self.sizes, self.batch_size = info, sizes, batch_size
        M = info.mem_len
        rows = ring_rows(M, sizes.reach, sizes.rewind)
        self.ring = Ring(batch_size, M, rows, info.start)
        window = info.dialect.window(info.config, M)
        self.window = np.full(batch_size, UNBOUNDED if window is None else window, np.int64)
        heads, _, width = sizes.states[0].shape
        dtype = "float32" if sizes.states[0].dtype == "bfloat16" else sizes.states[0].dtype  # which numpy has not
        shape = (len(sizes.states), batch_size, heads, rows + sizes.guard, width)
        require_room(int(np.prod(shape)) * np.dtype(dtype).itemsize, *the_memory(M, batch_size))
        self.buffer = np.zeros(shape, dtype)
        self._costs = call_costs(info, batch_size)
        self._kept: tuple[np.ndarray, np.ndarray] | None = None
        self._moved = False  # whether a call has run since `begin`
        self._overwritten: list[tuple[np.ndarray, list[np.ndarray]]] = []
        self._start(np.arange(batch_size))

    def plan(self, counts: np.ndarray, segment_len: int, last_only: bool) -> Iterator[Call]:
        """Calls that cost least; streams read as many tokens as each is given."""
        free = self.info.config.same_length
        if not free and segment_len > self.sizes.reach and int(counts.max()) > self.sizes.reach:
            raise InputError(
                f"segments of {segment_len} tokens reach further back than this bundle's memory holds, "
                f"{self.sizes.reach} at most: feed with segment_len={self.sizes.reach} or export again with "
                f"segment_len={segment_len}"
            )
        return ring_calls(self.ring, self._costs, counts, Cuts(segment_len, free, self.sizes.reach), last_only)

    def call(
        self, ids: np.ndarray, head: str, targets: np.ndarray | None, outputs: Sequence[np.ndarray], call: Call
    ) -> None:
        """Run one call in place and advance each stream by its valid tokens."""
        visible_from = self.ring.visible_from(call.offsets)
        if not self.ring.holds(visible_from, call.length):
            raise AssertionError(f"a call of {call.length} tokens would overwrite rows that it reads")
        if self._kept is not None and self._moved:  # what a feed's first call writes over, nobody may ask for
            self._keep_rows(call.length, self._kept[0])
        self._moved = True
        self.ring.write(call.length)
        self.run(ids, head, targets, outputs, visible_from)
        self.ring.positions += call.valid

    @abstractmethod
    def run(
        self,
        ids: np.ndarray,
        head: str,
        targets: np.ndarray | None,
        outputs: Sequence[np.ndarray],
        visible_from: np.ndarray,
    ) -> None:
        """Run a graph on the buffers; positions are advanced by the caller."""

    def _keep_rows(self, length: int, positions: np.ndarray) -> None:
        """Copy rows that the next call overwrites and a stream at `positions` could see, or rewind to seeing."""
        ring, lowest = self.ring, self._needed(positions)
        lost = ring.positions - ring.rows
        if ((lost + length > lowest) & (lost < positions)).any():
            slots = ring.slots
            rows = [self.buffer[:, b, :, s : s + length].copy() for b, s in enumerate(slots)]
            self._overwritten.append((slots, rows))

    def _needed(self, positions: np.ndarray) -> np.ndarray:
        """The lowest position whose row a stream at `positions` may ask for, int64 [B]."""
        return np.maximum(positions - self._saved_rows, 0)

    def begin(self) -> None:
        """Remember positions; rows are kept when they are about to be lost."""
        self._kept, self._moved = (self.ring.positions.copy(), self.ring.written.copy()), False

    def commit(self) -> None:
        """Forget the remembered state."""
        self._kept = None
        self._overwritten.clear()

    def rollback(self) -> None:
        """Return to the remembered positions and rows."""
        if self._kept is None:
            return
        for slots, rows in reversed(self._overwritten):
            for b, (slot, kept) in enumerate(zip(slots, rows, strict=True)):
                self.buffer[:, b, :, slot : slot + kept.shape[2]] = kept
        positions, written = self._kept
        # Rows below those that were kept are gone where calls wrote over them: they cannot be rewound to any more.
        lost = np.minimum(self.ring.written, self._needed(positions) + self.ring.rows)
        self.ring.positions[:], self.ring.written[:] = positions, np.maximum(written, lost)
        self.commit()

    def reset(self, streams: np.ndarray) -> None:
        """Put some streams to their start: by position, and by the first rows where a stream starts after some.

        Rows that are not seen are multiplied by weights of 0, which is no number where they hold none: a stream
        that ended in NaN is cleared.
        """
        for b in streams:
            if not self._is_finite(b):
                self.buffer[:, b] = 0
        self._start(streams)

    def _start(self, streams: np.ndarray) -> None:
        self.ring.reset(streams)
        if self.ring.start:
            for buffer, spec in zip(self.buffer, self.sizes.states, strict=True):
                buffer[streams, :, : self.ring.start] = self.sizes.initial[spec.input]

    def _is_finite(self, stream: int) -> bool:
        """Whether a stream holds numbers only.

        What is no number in one layer makes the next layers' rows of all later tokens so: it shows in the last row
        that was written, or in the last layer.
        """
        last = (self.ring.positions[stream] - 1) % self.ring.rows
        return bool(np.isfinite(self.buffer[:, stream, :, last]).all() and np.isfinite(self.buffer[-2:, stream]).all())

    def rewind(self, n: int, streams: np.ndarray) -> None:
        """Take back the last n tokens of some streams."""
        can = int(self.ring.rewindable()[streams].min(initial=n))
        if n > can:
            raise InputError(
                f"{n} tokens cannot be taken back, {can} can: export with --rewind {n} to keep the rows it needs, "
                "or fork() before them"
            )
        self.ring.positions[streams] -= n

    @property
    def positions(self) -> np.ndarray:
        """Graph position of each stream, int64 [B]."""
        return self.ring.positions.copy()

    @property
    def _saved_rows(self) -> int:
        return self.info.mem_len + self.sizes.rewind

    def state(self) -> Arrays:
        """Copies of positions and of the rows before them, oldest first, zeros where they are not there.

        They are there from position `oldest` on: a rewind may need more of them than that leaves.
        """
        found = {s.input: self._ordered(i) for i, s in enumerate(self.sizes.states)}
        return found | {POSITIONS: self.positions, OLDEST: self._oldest_saved()}

    def _oldest_saved(self) -> np.ndarray:
        return np.maximum(self.ring.oldest(), self._needed(self.ring.positions))

    def _ordered(self, tensor: int) -> np.ndarray:
        n = self._saved_rows
        rows = np.stack([self.buffer[tensor, b][:, self.ring.place(b, n)] for b in range(self.batch_size)])
        position = self.ring.positions[:, None] - np.arange(n, 0, -1)
        missing = position < self._oldest_saved()[:, None]
        rows[np.broadcast_to(missing[:, None], rows.shape[:3])] = 0
        return rows

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Write positions and rows into the ring."""
        needed = self._needed(state[POSITIONS])
        self.ring.restore(state[POSITIONS], np.maximum(state.get(OLDEST, needed), needed))
        for tensor, spec in enumerate(self.sizes.states):
            for b in range(self.batch_size):
                self.buffer[tensor, b][:, self.ring.place(b, self._saved_rows)] = state[spec.input][b]

    def memory(self, stream: int) -> list[Arrays]:
        """Per layer the rows that count, oldest first."""
        filled = int(min(self.info.mem_len, self.ring.positions[stream]))
        place = self.ring.place(stream, filled)
        layers: list[Arrays] = [{} for _ in range(self.info.config.n_layer)]
        for buffer, spec in zip(self.buffer, self.sizes.states, strict=True):
            layers[spec.layer][spec.input.rpartition("_")[0]] = buffer[stream][:, place]
        return layers
