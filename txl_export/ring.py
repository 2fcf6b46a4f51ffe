"""Which rows of a memory written in place count: arithmetic on positions, the same for every backend.

A stream's buffer has S rows that are written round and round, position p to slot p mod S, and G guard rows behind
them. A call writes L rows from the stream's own slot on; what its tokens do not fill (padding, or a stream that
reads nothing) lies ahead of the stream's position and is written again before anyone may see it. A write starts
inside the ring and never wraps: tokens must fit up to the ring's end, padding may spill into the guard.

Writing position w destroys position w - S. A query sees back to M before its segment's start, so with `reach` the
most tokens from a segment's start to the end of a call in it, and `rewind` those that can be taken back,

    S >= M + reach + rewind

is enough, and one row less is not (`tests/test_ring.py`).
"""

from __future__ import annotations

import numpy as np

UNBOUNDED = np.int64(2**62)  # a window of all keys


class Ring:
    """Positions of B streams, and what their buffers hold.

    Attributes:
        mem_len: M of this session.
        rows: S.
        start: the position of a stream that has read nothing.
        positions: position of each stream's next token, int64 [B].
        written: one past the highest position that was written since the stream's start, int64 [B].
    """

    def __init__(self, batch_size: int, mem_len: int, rows: int, start: int) -> None:
        """All streams at their start."""
        self.mem_len, self.rows, self.start = mem_len, rows, start
        self.positions = np.full(batch_size, start, np.int64)
        self.written = self.positions.copy()

    @property
    def slots(self) -> np.ndarray:
        """Where each stream's next row goes, int64 [B]."""
        return self.positions % self.rows

    def visible_from(self, offsets: np.ndarray) -> np.ndarray:
        """The lowest position that queries see, int64 [B]; `offsets` tokens of their segments were read before."""
        return np.maximum(self.positions - offsets - self.mem_len, 0)

    def holds(self, visible_from: np.ndarray, length: int) -> bool:
        """Whether a call of `length` tokens leaves every row from there on in place."""
        return bool((visible_from >= self._written_after(length) - self.rows).all())

    def _written_after(self, length: int) -> np.ndarray:
        """`written` after a call of `length` tokens; what lies in the guard destroys nothing."""
        end = self.positions + np.minimum(length, self.rows - self.positions % self.rows)
        return np.maximum(self.written, end, out=end)

    def write(self, length: int) -> None:
        """A call of `length` tokens is run: whether it succeeds or not, what it writes over is gone."""
        self.written[:] = self._written_after(length)

    def advance(self, valid: np.ndarray, length: int) -> None:
        """A call of `length` tokens was run, `valid` [B] of which count."""
        self.write(length)
        self.positions += valid

    def restore(self, positions: np.ndarray, oldest: np.ndarray) -> None:
        """Put streams to positions whose rows are there from `oldest` on, int64 [B] each; 0 where all are."""
        self.positions[:] = positions
        self.written[:] = np.where(oldest > 0, oldest + self.rows, positions)

    def reset(self, streams: np.ndarray) -> None:
        """Put some streams to their start; what they wrote is no longer seen."""
        self.positions[streams] = self.written[streams] = self.start

    def oldest(self) -> np.ndarray:
        """The lowest position whose row is still there, int64 [B]."""
        return np.maximum(self.written - self.rows, 0)

    def rewindable(self) -> np.ndarray:
        """Tokens that each stream can take back, int64 [B]: down to where M older rows, or all there were, remain."""
        oldest = self.oldest()
        lowest = np.where(oldest > 0, oldest + self.mem_len, self.start)
        return np.maximum(self.positions - lowest, 0)

    def place(self, stream: int, rows: int) -> np.ndarray:
        """Slots of a stream's last `rows` positions, oldest first, int64 [rows]."""
        position = self.positions[stream]
        found: np.ndarray = np.arange(position - rows, position) % self.rows
        return found
