"""Memory of streams in one buffer that is written in place: layout `ring`, whatever runs the graphs.

Where the rows are is a `RowStore`'s business; which of them count is told by positions (`txl_export.ring`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from txl_export.backends.base import Arrays, ModelInfo, Streams
from txl_export.backends.rows import ALL, HostRows, RowStore
from txl_export.bundle import Bundle
from txl_export.calls import ON_CPU, Call, Cuts, call_costs, ring_calls
from txl_export.errors import BundleError, InputError
from txl_export.layouts import StateSpec, ring_rows
from txl_export.ring import UNBOUNDED, Ring
from txl_export.room import require_room, the_memory

POSITIONS, OLDEST = "positions", "oldest"
UNWRITTEN = 12344.0  # put where a row is about to be written; every type of memory holds it


@dataclass(frozen=True)
class RingSizes:
    """The numbers of a bundle that rings are made with.

    Attributes:
        states: memory tensors at the bundle's M.
        initial: by memory tensor, the row that streams start with.
        guard: G.
        reach: tokens from a segment's start to the end of a call in it, at most.
        rewind: tokens that can be taken back at any time.
        rows: S, where graphs have it as a constant; None where it follows from a session's M.
    """

    states: Sequence[StateSpec]
    initial: Mapping[str, np.ndarray]
    guard: int
    reach: int
    rewind: int
    rows: int | None = None

    @classmethod
    def of(cls, bundle: Bundle, fixed: bool = False) -> RingSizes:
        """Those of a bundle; `fixed` where all its sessions have the rows of its own M."""
        m = bundle.manifest
        return cls(m.states, bundle.initial_rows(), m.guard, m.reach, m.rewind, m.ring if fixed else None)


def with_mem_len(info: ModelInfo, mem_len: int | None) -> ModelInfo:
    """What a session that remembers `mem_len` tokens, None for the model's own M, is told; raises InputError."""
    if mem_len is None or mem_len == info.mem_len:
        return info
    if not 0 <= mem_len <= info.mem_len:
        raise InputError(f"mem_len is {mem_len}, expected 0 to {info.mem_len}, what this bundle was exported for")
    info.dialect.window(info.config, mem_len)
    return replace(info, mem_len=mem_len, start=mem_len if info.start else 0)


class RingStreams(Streams):
    """Memory of B streams, [B, H, S + G, d_head] for keys and for values of each layer, in one store.

    Calls that overwrite what `rollback` may need keep a copy of those rows; others keep positions only.

    Attributes:
        rates: by which calls are chosen.
    """

    rates = ON_CPU

    def __init__(
        self,
        info: ModelInfo,
        sizes: RingSizes,
        batch_size: int,
        allocate: Callable[[tuple[int, ...], np.dtype[np.generic]], RowStore] | None = None,
    ) -> None:
        """Allocate the buffers, by default on the host, and put all streams to their start."""
        self.info, self.sizes, self.batch_size = info, sizes, batch_size
        M = info.mem_len
        rows = sizes.rows or ring_rows(M, sizes.reach, sizes.rewind)
        self.ring = Ring(batch_size, M, rows, info.start)
        window = info.dialect.window(info.config, M)
        self.window = np.full(batch_size, UNBOUNDED if window is None else window, np.int64)
        heads, _, width = sizes.states[0].shape
        dtype = "float32" if sizes.states[0].dtype == "bfloat16" else sizes.states[0].dtype  # which numpy has not
        shape = (len(sizes.states), batch_size, heads, rows + sizes.guard, width)
        self.store = (allocate or self._on_host)(shape, np.dtype(dtype))
        self._costs = call_costs(info, batch_size, self.rates)
        self._kept: tuple[np.ndarray, np.ndarray] | None = None
        self._moved = False  # whether a call has run since `begin`
        self._overwritten: list[tuple[np.ndarray, list[object]]] = []
        self._start(np.arange(batch_size))

    def _on_host(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> HostRows:
        require_room(int(np.prod(shape)) * dtype.itemsize, *the_memory(self.info.mem_len, self.batch_size))
        return HostRows(shape, dtype)

    @property
    def buffer(self) -> np.ndarray:
        """The rows, [tensors, B, H, S + G, d_head], of streams whose memory is the host's."""
        assert isinstance(self.store, HostRows)
        return self.store.array

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
            rows = [self.store.keep(b, int(s), length) for b, s in enumerate(slots)]
            self._overwritten.append((slots, rows))

    def _needed(self, positions: np.ndarray) -> np.ndarray:
        """The lowest position whose row a stream at `positions` may ask for, int64 [B]."""
        return np.maximum(positions - self._saved_rows, 0)

    def begin(self) -> None:
        """Remember positions; rows are kept when they are about to be lost."""
        self.rollback()  # one that could not put rows back is ended first
        self._kept, self._moved = (self.ring.positions.copy(), self.ring.written.copy()), False

    def commit(self) -> None:
        """Forget the remembered state."""
        self._kept = None
        self._overwritten.clear()
        self.store.release()

    def rollback(self) -> None:
        """Return to the remembered positions and rows."""
        if self._kept is None:
            return
        positions, written = self._kept
        # Rows below those that were kept are gone where calls wrote over them: they cannot be rewound to any more.
        lost = np.minimum(self.ring.written, self._needed(positions) + self.ring.rows)
        self.ring.positions[:], self.ring.written[:] = positions, np.maximum(written, lost)
        for slots, rows in reversed(self._overwritten):
            for b, (slot, kept) in enumerate(zip(slots, rows, strict=True)):
                self.store.put_back(b, int(slot), kept)
        self.commit()

    def reset(self, streams: np.ndarray) -> None:
        """Put some streams to their start: by position, and by the first rows where a stream starts after some.

        Rows that are not seen are multiplied by weights of 0, which is no number where they hold none: a stream
        that ended in NaN is cleared.
        """
        for b in streams.tolist():
            if not self._is_finite(b):
                self.store.write(b, ALL, np.zeros((), self.store.dtype))
        self._start(streams)

    def _start(self, streams: np.ndarray) -> None:
        self.ring.reset(streams)
        if self.ring.start:
            first = np.stack([self.sizes.initial[s.input] for s in self.sizes.states])  # [tensors, H, 1, d_head]
            for b in streams.tolist():
                self.store.write(b, slice(0, self.ring.start), first)

    def _is_finite(self, stream: int) -> bool:
        """Whether a stream holds numbers only.

        What is no number in one layer makes the next layers' rows of all later tokens so: it shows in the last row
        that was written, or in the last layer.
        """
        last = int((self.ring.positions[stream] - 1) % self.ring.rows)
        parts = self.store.read(stream, [last]), self.store.read(stream, tensors=slice(-2, None))
        return all(np.isfinite(part).all() for part in parts)

    def rewind(self, n: int, streams: np.ndarray) -> None:
        """Take back the last n tokens of some streams."""
        can = int(self.ring.rewindable()[streams].min(initial=min(n, int(UNBOUNDED))))
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
        rows = [self._ordered(b) for b in range(self.batch_size)]
        found = {s.input: np.stack([r[i] for r in rows]) for i, s in enumerate(self.sizes.states)}
        return found | {POSITIONS: self.positions, OLDEST: self._oldest_saved()}

    def _oldest_saved(self) -> np.ndarray:
        return np.maximum(self.ring.oldest(), self._needed(self.ring.positions))

    def _ordered(self, stream: int) -> np.ndarray:
        n = self._saved_rows
        rows = self.store.read(stream, self.ring.place(stream, n))
        position = self.ring.positions[stream] - np.arange(n, 0, -1)
        rows[:, :, position < self._oldest_saved()[stream]] = 0
        return rows

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Write positions and rows into the ring."""
        needed = self._needed(state[POSITIONS])
        self.ring.restore(state[POSITIONS], np.maximum(state.get(OLDEST, needed), needed))
        for b in range(self.batch_size):
            rows = np.stack([state[s.input][b] for s in self.sizes.states])
            self.store.write(b, self.ring.place(b, self._saved_rows), rows)

    def adopt(self, other: Streams, index: np.ndarray) -> None:
        """See `Streams.adopt`; rows are copied where they are."""
        assert isinstance(other, RingStreams)
        self.store.gather(other.store, index)
        self.ring.positions[:] = other.ring.positions[index]
        self.ring.written[:] = other.ring.written[index]

    def memory(self, stream: int) -> list[Arrays]:
        """Per layer the rows that count, oldest first."""
        filled = int(min(self.info.mem_len, self.ring.positions[stream]))
        place = self.ring.place(stream, filled)
        layers: list[Arrays] = [{} for _ in range(self.info.config.n_layer)]
        for rows, spec in zip(self.store.read(stream, place), self.sizes.states, strict=True):
            layers[spec.layer][spec.input.rpartition("_")[0]] = rows
        return layers

    def checked(self, file: str, run: Callable[[], None]) -> None:
        """Run the first call of a graph, and see that it wrote every buffer and only where it should.

        Args:
            file: the graph's, for the message.
            run: does it, and waits until it has happened.

        Raises:
            BundleError: it writes elsewhere; the memory is as it was, but for rows that nobody sees.
        """
        total = self.store.shape[3]
        slots = [(b, [int(s - 1) % total, int(s)]) for b, s in enumerate(self.ring.slots)]
        kept = [self.store.read(b, places) for b, places in slots]
        for b, (_, s) in slots:
            self.store.write(b, [s], np.full((), UNWRITTEN, self.store.dtype))
        try:
            run()
            for (b, places), rows in zip(slots, kept, strict=True):
                found = self.store.read(b, places)
                unwritten = (found[:, :, 1] == UNWRITTEN).all(axis=(1, 2)).any()
                if unwritten or not np.array_equal(found[:, :, 0], rows[:, :, 0], equal_nan=True):
                    raise BundleError(f"{file} does not write its memory in place: export again")
        except BaseException:
            for (b, places), rows in zip(slots, kept, strict=True):
                self.store.write(b, places, rows)
            raise
