"""Memory of streams on a GPU, and the places through which tokens and answers pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from txl_export.backends.device.calls import Block, Cuda, Owned, aligned
from txl_export.backends.rows import ALL, Places, RowStore


@dataclass(frozen=True)
class Numbers:
    """How numbers of the memory are stored on the device, and what the host sees of them.

    Attributes:
        name: of the type; "bfloat16", which numpy has not, is seen as float32.
    """

    name: str

    @property
    def stored(self) -> np.dtype[np.generic]:
        """What has the size of a stored number."""
        return np.dtype(np.uint16 if self.name == "bfloat16" else self.name)

    @property
    def seen(self) -> np.dtype[np.generic]:
        """Numpy's type on the host."""
        return np.dtype(np.float32 if self.name == "bfloat16" else self.name)

    def decode(self, stored: np.ndarray) -> np.ndarray:
        """What the host sees."""
        if self.name != "bfloat16":
            return stored
        return (stored.astype(np.uint32) << 16).view(np.float32)

    def encode(self, seen: np.ndarray) -> np.ndarray:
        """Numbers as they are stored, rounded to the nearest, to even between two."""
        if self.name != "bfloat16":
            return np.ascontiguousarray(seen, self.stored)
        bits = np.ascontiguousarray(seen, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(seen), 0x7FC0, rounded).astype(np.uint16)


class Bounce:
    """Pinned host memory for what is copied now and then: the GPU copies from and to no other without stopping."""

    def __init__(self, cuda: Cuda) -> None:
        """Nothing is allocated yet."""
        self.cuda = cuda
        self._raw, self._owned = np.empty(0, np.uint8), None  # type: np.ndarray, Owned | None

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
        """An array to copy from or to, until the next is asked for."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        if nbytes > self._raw.nbytes:
            self._raw, self._owned = self.cuda.pinned(nbytes)
        found: np.ndarray = self._raw[:nbytes].view(dtype).reshape(shape)
        return found


class Kept(NamedTuple):
    """Rows of one stream, copied aside on the device."""

    block: Block
    n: int


class DeviceRows(RowStore):
    """Rows on the device, each tensor at an address that engines take; single rows pass through the host.

    Reading and writing waits for the stream; keeping and putting back only queues copies.
    """

    def __init__(self, cuda: Cuda, stream: Owned, shape: tuple[int, ...], numbers: Numbers) -> None:
        """All zeros; raises DeviceError where there is no room."""
        self.cuda, self.stream, self.shape, self.dtype = cuda, stream, shape, numbers.seen
        self._type = numbers
        tensors, B, H, rows, width = shape
        self._width = width * numbers.stored.itemsize
        self._head, self._stream = rows * self._width, H * rows * self._width
        self._tensor = aligned(B * self._stream)
        self._block = cuda.allocate(tensors * self._tensor, f"a memory of {rows} rows for {B} streams")
        cuda.fill(self._block.address, 0, self._block.nbytes, stream)
        self._bounce = Bounce(cuda)
        self._lent: list[Block] = []
        self._spare: dict[int, list[Block]] = {}

    def address(self, tensor: int) -> int:
        """Of a tensor's first byte."""
        return self._block.address + tensor * self._tensor

    def _at(self, tensor: int, stream: int, row: int) -> int:
        return self.address(tensor) + stream * self._stream + row * self._width

    def read(self, stream: int, places: Places = ALL, tensors: slice = ALL) -> np.ndarray:
        """See `RowStore.read`."""
        numbers, chosen = self._numbers(places), range(self.shape[0])[tensors]
        found = np.empty((len(chosen), self.shape[2], len(numbers), self.shape[4]), self._type.stored)
        for part, tensor in zip(found, chosen, strict=True):
            pinned = self._bounce.array(part.shape, part.dtype)
            for row, at, n in runs(numbers):
                place = pinned[:, at : at + n]
                self._copy(place.ctypes.data, pinned.strides[0], self._at(tensor, stream, row), self._head, n)
            self.cuda.wait(self.stream)
            part[...] = pinned
        return self._type.decode(found)

    def write(self, stream: int, places: Places, rows: np.ndarray) -> None:
        """See `RowStore.write`."""
        numbers = self._numbers(places)
        shape = (self.shape[0], self.shape[2], len(numbers), self.shape[4])
        for tensor, part in enumerate(self._type.encode(np.broadcast_to(rows, shape))):
            pinned = self._bounce.array(part.shape, part.dtype)
            pinned[...] = part
            for row, at, n in runs(numbers):
                place = pinned[:, at : at + n]
                self._copy(self._at(tensor, stream, row), self._head, place.ctypes.data, pinned.strides[0], n)
            self.cuda.wait(self.stream)

    def gather(self, other: RowStore, index: np.ndarray) -> None:
        """See `RowStore.gather`; raises DeviceError where there is no room for what a reordering copies aside."""
        assert isinstance(other, DeviceRows)
        self.cuda.wait(other.stream)
        place, aside = other.address, None
        if other is self:  # each tensor's streams, before they are written over
            aside = self.cuda.allocate(self.shape[1] * self._stream, "reordering streams")
        for tensor in range(self.shape[0]):
            source = place(tensor)
            if aside is not None:
                self.cuda.copy(aside.address, source, aside.nbytes, self.stream)
                source = aside.address
            for b, i in enumerate(index.tolist()):
                at = self._at(tensor, b, 0)
                self.cuda.copy(at, source + i * self._stream, self._stream, self.stream)
        self.cuda.wait(self.stream)  # the others may go on, and what was copied aside goes

    def keep(self, stream: int, first: int, n: int) -> Kept:
        """See `RowStore.keep`."""
        step, size = n * self._width, self.shape[2] * n * self._width
        nbytes = self.shape[0] * size
        spare = self._spare.setdefault(nbytes, [])  # allocating stops the device: blocks are used again
        block = spare.pop() if spare else self.cuda.allocate(nbytes, f"undoing calls of {n} tokens")
        self._lent.append(block)
        for tensor in range(self.shape[0]):
            self._copy(block.address + tensor * size, step, self._at(tensor, stream, first), self._head, n)
        return Kept(block, n)

    def release(self) -> None:
        """See `RowStore.release`."""
        for block in self._lent:
            self._spare[block.nbytes].append(block)
        self._lent.clear()

    def put_back(self, stream: int, first: int, kept: object) -> None:
        """See `RowStore.put_back`."""
        assert isinstance(kept, Kept)
        n, size = kept.n, self.shape[2] * kept.n * self._width
        for tensor in range(self.shape[0]):
            source = kept.block.address + tensor * size
            self._copy(self._at(tensor, stream, first), self._head, source, n * self._width, n)

    def _copy(self, to: int, to_step: int, source: int, source_step: int, n: int) -> None:
        """Queue a copy of n rows of every head of one stream and tensor."""
        self.cuda.copy_rows(to, to_step, source, source_step, n * self._width, self.shape[2], self.stream)

    def _numbers(self, places: Places) -> np.ndarray:
        found: np.ndarray = np.arange(self.shape[3])[places]
        return found


def runs(numbers: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Stretches of numbers that rise by one: (first number, where it stands, how many)."""
    if not len(numbers):
        return
    ends = np.append(np.flatnonzero(np.diff(numbers) != 1) + 1, len(numbers))
    start = 0
    for end in ends:
        yield int(numbers[start]), start, int(end - start)
        start = int(end)


class Staging:
    """Arrays that exist twice, pinned on the host and on the device, and are sent by one copy.

    Attributes:
        host: by name the host's arrays. They may be written once the copy before has happened: `settle`.
        address: by name the device's.
    """

    def __init__(self, cuda: Cuda, stream: Owned, arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        """Allocate both sides, all zeros.

        Args:
            cuda: the GPU.
            stream: in which copies are queued.
            arrays: by name shapes and dtypes.
        """
        self.cuda, self.stream = cuda, stream
        sizes = {name: int(np.prod(shape)) * np.dtype(dtype).itemsize for name, (shape, dtype) in arrays.items()}
        starts = np.cumsum([0, *(aligned(n) for n in sizes.values())])
        self._block = cuda.allocate(int(starts[-1]), "what passes between host and GPU")
        self._raw, self._owned = cuda.pinned(self._block.nbytes)
        self._raw[:] = 0
        cuda.fill(self._block.address, 0, self._block.nbytes, stream)
        self.host: dict[str, np.ndarray] = {}
        self.address: dict[str, int] = {}
        for (name, (shape, dtype)), start in zip(arrays.items(), starts.tolist(), strict=False):
            self.host[name] = self._raw[start : start + sizes[name]].view(dtype).reshape(shape)
            self.address[name] = self._block.address + start
        self._happened = cuda.event()

    def settle(self) -> None:
        """Wait until the copies that were queued have happened: the host's side may be written, or read."""
        self.cuda.wait_event(self._happened)

    def send(self) -> None:
        """Queue the copy of all arrays to the device."""
        self.cuda.copy(self._block.address, self._raw.ctypes.data, self._block.nbytes, self.stream)
        self.cuda.record(self._happened, self.stream)

    def fetch(self, name: str, nbytes: int) -> None:
        """Queue the copy of an array's first bytes to the host."""
        self.cuda.copy(self.host[name].ctypes.data, self.address[name], nbytes, self.stream)
