"""Positions of a memory written in place, against buffers whose every slot remembers which position it holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_export.ring import Ring

B = 2


class Buffers:
    """B streams whose slots hold numbers of positions, driven through a Ring in every way that is allowed.

    Segments have up to `reach` tokens in calls of any length that ends within `reach` of every segment's start,
    whether tokens fill it or not; streams may read nothing, be reset, and take back what keeps them within `rewind`
    of the farthest that they came to.
    """

    def __init__(self, mem_len: int, reach: int, rewind: int, start: int, rows: int, seed: int) -> None:
        self.M, self.reach, self.rewind, self.start = mem_len, reach, rewind, start
        self.ring = Ring(B, mem_len, rows, start)
        self.slots = np.full((B, rows + reach - 1), -1)
        self.farthest = np.full(B, start)
        self.rng = np.random.default_rng(seed)
        self.fill(np.arange(B))

    def fill(self, streams: np.ndarray) -> None:
        self.slots[streams, : self.start] = np.arange(self.start)

    def there(self, stream: int, first: int, end: int) -> bool:
        """Whether the slots of positions `first` to `end` - 1 hold them."""
        positions = np.arange(first, end)
        return bool((self.slots[stream][positions % self.ring.rows] == positions).all())

    def call(self, length: int, valid: np.ndarray, offsets: np.ndarray) -> bool:
        """Run a call; whether every token that counts found all rows that it sees, and no other stream lost any."""
        ring, positions = self.ring, self.ring.positions.copy()
        lowest, holds = ring.visible_from(offsets), ring.holds(ring.visible_from(offsets), length)
        assert (lowest == np.maximum(positions - offsets - self.M, 0)).all()
        for b, slot in enumerate(ring.slots):
            self.slots[b, slot : slot + length] = positions[b] + np.arange(length)
        ring.advance(valid, length)
        old = all(self.there(b, lowest[b], positions[b]) for b in range(B))
        assert not holds or old
        assert holds == old or not self.M  # without a memory nothing old is seen, and `holds` is on the safe side
        self.farthest = np.maximum(self.farthest, ring.positions)
        return all(self.there(b, lowest[b], positions[b] + valid[b]) for b in range(B))

    def feed(self, counts: np.ndarray) -> bool:
        """Read tokens in segments, each in calls of random lengths."""
        done, fine = np.zeros(B, int), True
        segment_len = int(self.rng.integers(1, self.reach + 1))
        while (left := counts - done).any():
            offsets = np.where(left > 0, done % segment_len, 0)
            wanted = np.minimum(np.minimum(left, self.ring.rows - self.ring.slots), segment_len - offsets)
            length = int(self.rng.integers(1, self.reach - offsets.max() + 1))
            valid = np.minimum(wanted, length)
            fine &= self.call(length, valid, offsets)
            done += valid
        return fine

    def take_back(self) -> None:
        """Go back as far as is promised, or less, whatever the ring says."""
        lowest = np.maximum(self.farthest - self.rewind, self.start)
        most = np.maximum(self.ring.positions - lowest, 0)
        n = most if self.rng.random() < 0.5 else self.rng.integers(0, most + 1)
        self.ring.positions -= n

    def reset(self) -> None:
        streams = np.flatnonzero(self.rng.random(B) < 0.5)
        self.ring.reset(streams)
        self.fill(streams)
        self.farthest[streams] = self.start

    def step(self) -> bool:
        """Do something; False where a token did not find what it sees."""
        what = self.rng.random()
        if what < 0.05:
            self.reset()
        elif what < 0.35:
            self.take_back()
        else:
            idle = self.rng.random(B) < 0.3
            return self.feed(np.where(idle, 0, self.rng.integers(1, 2 * self.reach + 1, B)))
        return True

    def rewindable(self, stream: int) -> int:
        """How far a stream can go back, token by token, while the M before, or all there were, are there."""
        position = int(self.ring.positions[stream])
        ends = range(position, self.start - 1, -1)
        return sum(1 for _ in itertools.takewhile(lambda p: self.there(stream, max(p - self.M, 0), p), ends)) - 1


SIZES = st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(0, 4), st.booleans())


@given(sizes=SIZES, more=st.integers(0, 3), seed=st.integers(0, 10_000))
def test_what_tokens_see_is_in_place(sizes, more, seed):
    """S = M + reach + rewind rows are enough whatever happens, and more do no harm."""
    M, reach, rewind, zeros = sizes
    buffers = Buffers(M, reach, rewind, M if zeros else 0, M + reach + rewind + more, seed)
    for _ in range(60):
        assert buffers.step()
        promised = np.maximum(buffers.ring.positions - np.maximum(buffers.farthest - rewind, buffers.start), 0)
        assert (buffers.ring.rewindable() >= promised).all()


@pytest.mark.parametrize("sizes", [*itertools.product((1, 2, 4), (1, 2, 3), (0, 1, 3))], ids=str)
def test_one_row_less_is_not_enough(sizes):
    M, reach, rewind = sizes
    rows = M + reach + rewind - 1
    assert any(
        not buffers.step()
        for seed in range(50)
        for buffers in [Buffers(M, reach, rewind, 0, rows, seed)]
        for _ in range(60)
    )


@given(sizes=SIZES, seed=st.integers(0, 10_000))
def test_what_can_be_taken_back(sizes, seed):
    """`rewindable` is as many tokens as leave M older rows in place, not one more, and none that were not read."""
    M, reach, rewind, zeros = sizes
    buffers = Buffers(max(M, 1), reach, rewind, max(M, 1) if zeros else 0, max(M, 1) + reach + rewind, seed)
    for _ in range(30):
        buffers.step()
        assert buffers.ring.rewindable().tolist() == [buffers.rewindable(b) for b in range(B)]


@given(sizes=SIZES, seed=st.integers(0, 10_000))
def test_the_last_rows_are_placed_oldest_first(sizes, seed):
    M, reach, rewind, zeros = sizes
    buffers = Buffers(M, reach, rewind, M if zeros else 0, M + reach + rewind, seed)
    for _ in range(20):
        buffers.step()
        for b, (oldest, position) in enumerate(zip(buffers.ring.oldest(), buffers.ring.positions, strict=True)):
            n = int(min(position, position - oldest))
            place = buffers.ring.place(b, n)
            assert buffers.slots[b][place].tolist() == list(range(position - n, position))


@given(sizes=SIZES, seed=st.integers(0, 10_000))
def test_a_ring_goes_on_from_where_another_is(sizes, seed):
    """With the rows from `oldest` on, as a saved session has them, a new ring promises no more and no less."""
    M, reach, rewind, zeros = sizes
    buffers = Buffers(M, reach, rewind, M if zeros else 0, M + reach + rewind, seed)
    for _ in range(20):
        buffers.step()
        ours, new = buffers.ring, Ring(B, M, buffers.ring.rows, buffers.start)
        new.restore(ours.positions, ours.oldest())
        assert new.positions.tolist() == ours.positions.tolist()
        assert new.rewindable().tolist() == ours.rewindable().tolist()


def test_a_call_that_fails_may_have_written():
    ring = Ring(1, 2, 5, 0)
    ring.advance(np.array([4]), 4)
    assert ring.rewindable().tolist() == [4]
    ring.write(4)  # only slot 4 is before the ring's end: nothing is lost
    assert (ring.positions.tolist(), ring.rewindable().tolist()) == ([4], [4])
    ring.advance(np.array([1]), 1)
    ring.write(2)  # positions 5 and 6 go where 0 and 1 were
    assert (ring.positions.tolist(), ring.oldest().tolist(), ring.rewindable().tolist()) == ([5], [2], [1])
