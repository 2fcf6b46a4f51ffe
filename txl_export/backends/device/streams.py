"""Memory of streams that stays on a GPU: written in place in layout `ring`, in buffers that take turns in others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.backends.base import Arrays, Streams
from txl_export.backends.device.calls import Block
from txl_export.backends.device.graphs import SessionGraphs
from txl_export.backends.device.memory import Bounce, DeviceRows, Numbers
from txl_export.backends.device.tape import DeviceSide
from txl_export.backends.ring import RingSizes, RingStreams, with_mem_len
from txl_export.backends.turns import POSITIONS, TurnStreams
from txl_export.calls import ON_GPU

if TYPE_CHECKING:
    from txl_export.backends.device.model import DeviceModel


class DeviceRing(RingStreams):
    """Memory of B streams that graphs write in place."""

    rates = ON_GPU

    def __init__(self, model: DeviceModel, sizes: RingSizes, batch_size: int, mem_len: int | None = None) -> None:
        """Allocate the buffers and put all streams to their start; raises DeviceError where there is no room."""
        self.graphs = SessionGraphs(model, batch_size)
        cuda, stream = model.cuda, self.graphs.stream
        self.device = DeviceSide(cuda, stream)
        self._numbers = Numbers(sizes.states[0].dtype)
        self._proven: set[str] = set()  # graphs that were seen to write in place
        super().__init__(
            with_mem_len(model.info, mem_len),
            sizes,
            batch_size,
            lambda shape, _: DeviceRows(cuda, stream, shape, self._numbers),
        )
        assert isinstance(self.store, DeviceRows)
        addresses = [self.store.address(i) for i in range(len(sizes.states))]
        pairs = zip(sizes.states, addresses, strict=True)
        self._memory = {name: a for s, a in pairs for name in (s.input, s.output)}

    def run(self, ids: Any, head: str, targets: Any, outputs: Sequence[Any], visible_from: np.ndarray) -> None:
        """Run a graph on the buffers where they are."""
        bound = self.graphs.bound(head, ids.shape[1], self.store.shape[3])
        places = {POSITIONS: self.ring.positions, "visible_from": visible_from, "window": self.window}

        def call() -> None:
            bound.run(ids, targets, outputs, places, self._memory)

        if bound.graph.file in self._proven:
            call()
        else:
            self.checked(bound.graph.file, call)
            self._proven.add(bound.graph.file)


class DeviceSlot:
    """The memory of all streams at one time, and their positions, which the host counts."""

    def __init__(self, blocks: Mapping[str, Block], batch_size: int) -> None:
        """Take a block for each memory tensor."""
        self.blocks, self.positions = blocks, np.zeros(batch_size, np.int64)


class DeviceTurns(TurnStreams[DeviceSlot]):
    """Memory of B streams in buffers on the device that take turns as input and output."""

    def __init__(self, model: DeviceModel, batch_size: int) -> None:
        """Allocate the first buffers and put all streams to their start; raises DeviceError where there is no room."""
        self.model, self.graphs = model, SessionGraphs(model, batch_size)
        self.cuda, self.stream = model.cuda, self.graphs.stream
        self.device, self._bounce = DeviceSide(self.cuda, self.stream), Bounce(self.cuda)
        m = model.bundle.manifest
        super().__init__(model.info, m.states, model.bundle.initial_rows(), batch_size)

    def _allocate(self) -> DeviceSlot:
        what = f"a memory of {self.info.mem_len} tokens for {self.batch_size} streams"
        blocks = {s.input: self.cuda.allocate(self.batch_size * s.nbytes, what) for s in self.states}
        for block in blocks.values():
            self.cuda.fill(block.address, 0, block.nbytes, self.stream)
        return DeviceSlot(blocks, self.batch_size)

    def _read(self, slot: DeviceSlot) -> Arrays:
        found = {}
        for s in self.states:
            numbers = Numbers(s.dtype)
            pinned = self._bounce.array((self.batch_size, *s.shape), numbers.stored)
            self.cuda.copy(pinned.ctypes.data, slot.blocks[s.input].address, pinned.nbytes, self.stream)
            self.cuda.wait(self.stream)
            found[s.input] = numbers.decode(pinned.copy())
        return found | {POSITIONS: slot.positions.copy()}

    def _write(self, slot: DeviceSlot, state: Mapping[str, np.ndarray], streams: np.ndarray) -> None:
        slot.positions[streams] = state[POSITIONS]
        for s in self.states:
            numbers, block = Numbers(s.dtype), slot.blocks[s.input]
            shape = (len(streams), *s.shape)
            pinned = self._bounce.array(shape, numbers.stored)
            pinned[...] = numbers.encode(np.broadcast_to(state[s.input], shape))
            for part, b in zip(pinned, streams.tolist(), strict=True):
                self.cuda.copy(block.address + b * s.nbytes, part.ctypes.data, s.nbytes, self.stream)
            self.cuda.wait(self.stream)

    def _gather(self, slot: DeviceSlot, other: DeviceSlot, index: np.ndarray) -> None:
        slot.positions[:] = other.positions[index]
        for s in self.states:
            to, source = slot.blocks[s.input].address, other.blocks[s.input].address
            for b, i in enumerate(index.tolist()):
                self.cuda.copy(to + b * s.nbytes, source + i * s.nbytes, s.nbytes, self.stream)
        self.cuda.wait(self.stream)

    def adopt(self, other: Streams, index: np.ndarray) -> None:
        """See `Streams.adopt`; what others were given to do has happened before."""
        assert isinstance(other, DeviceTurns)
        self.cuda.wait(other.stream)
        super().adopt(other, index)

    def _positions(self, slot: DeviceSlot) -> np.ndarray:
        return slot.positions

    def run(self, ids: Any, head: str, targets: Any, outputs: Sequence[Any], now: int, free: int) -> None:
        """Run a graph from one buffer into another."""
        bound = self.graphs.bound(head, ids.shape[1], 0)
        before, after = self._slots[now], self._slots[free]
        memory = {s.input: before.blocks[s.input].address for s in self.states}
        memory |= {s.output: after.blocks[s.input].address for s in self.states}
        bound.run(ids, targets, outputs, {POSITIONS: before.positions}, memory)
        after.positions[:] = before.positions + ids.shape[1]
