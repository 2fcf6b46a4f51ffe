"""Memory in buffers that take turns as a graph's input and output: layouts `kv` and `hidden`.

Two buffers swap roles at every call; a third, made when first needed, lets a feed of several calls be taken back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from txl_export.backends.base import Arrays, ModelInfo, Streams, rows_of
from txl_export.calls import Call
from txl_export.layouts import StateSpec

POSITIONS = "positions"
Slot = TypeVar("Slot")  # the memory of all streams at one time


class TurnStreams(Streams, Generic[Slot]):
    """Which buffer holds the present state, which the remembered one, and which is free."""

    def __init__(self, info: ModelInfo, states: Sequence[StateSpec], first: Arrays, batch_size: int) -> None:
        """Allocate the first buffers and put all streams to their start.

        Args:
            info: of the model.
            states: its memory tensors.
            first: by memory tensor the row, and by `POSITIONS` the position, that streams start with.
            batch_size: streams.
        """
        self.info, self.states, self.batch_size = info, states, batch_size
        self._first = first | {POSITIONS: np.array(info.start)}
        self._slots: list[Slot] = [self._allocate(), self._allocate()]
        self._now, self._kept = 0, None  # type: int, int | None
        self.reset(np.arange(batch_size))

    @abstractmethod
    def _allocate(self) -> Slot:
        """Buffers for the memory and positions of all streams."""

    @abstractmethod
    def _read(self, slot: Slot) -> Arrays:
        """Copies of memory and positions."""

    @abstractmethod
    def _write(self, slot: Slot, state: Mapping[str, np.ndarray], streams: np.ndarray) -> None:
        """Put memory and positions of some streams, [streams, ...] or what broadcasts to it."""

    @abstractmethod
    def run(
        self,
        ids: np.ndarray,
        head: str,
        targets: np.ndarray | None,
        outputs: Sequence[np.ndarray],
        now: int,
        free: int,
    ) -> None:
        """Run a graph from one buffer into another."""

    def call(
        self, ids: np.ndarray, head: str, targets: np.ndarray | None, outputs: Sequence[np.ndarray], call: Call
    ) -> None:
        """Run one call from the present buffer into a free one, which becomes the present one."""
        del call  # all streams advance by all of it
        free = self._free_slot()
        self.run(ids, head, targets, outputs, self._now, free)
        self._now = free

    def _free_slot(self) -> int:
        """A buffer that holds neither the present nor the remembered state."""
        taken = {self._now, self._kept}
        free = next((i for i in range(len(self._slots)) if i not in taken), None)
        if free is None:
            self._slots.append(self._allocate())
            free = len(self._slots) - 1
        return free

    def begin(self) -> None:
        """Keep the present buffer untouched until `commit`."""
        self._kept = self._now

    def commit(self) -> None:
        """Let the kept buffer be used again."""
        self._kept = None

    def rollback(self) -> None:
        """Make the kept buffer the present one."""
        if self._kept is not None:
            self._now, self._kept = self._kept, None

    def reset(self, streams: np.ndarray) -> None:
        """Write the first rows and position of some streams."""
        self._write(self._slots[self._now], self._first, streams)

    @property
    def positions(self) -> np.ndarray:
        """Graph position of each stream, int64 [B]."""
        return self._positions(self._slots[self._now]).copy()

    @abstractmethod
    def _positions(self, slot: Slot) -> np.ndarray:
        """Those of a buffer, on the host."""

    def state(self) -> Arrays:
        """Copies of memory and positions."""
        return self._read(self._slots[self._now])

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy memory and positions in."""
        self._write(self._slots[self._now], state, np.arange(self.batch_size))

    @abstractmethod
    def _gather(self, slot: Slot, other: Slot, index: np.ndarray) -> None:
        """Copy memory and positions of streams of another buffer, where they are."""

    def adopt(self, other: Streams, index: np.ndarray) -> None:
        """See `Streams.adopt`: into a free buffer, so that these streams may be the others."""
        assert isinstance(other, TurnStreams)
        free = self._free_slot()
        self._gather(self._slots[free], other._slots[other._now], index)
        self._now = free

    def memory(self, stream: int) -> list[Arrays]:
        """Per layer the rows that count, oldest first."""
        return rows_of(self.info, self.states, self.state(), stream)
