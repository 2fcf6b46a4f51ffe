"""Memory of the stand-in for a GPU: host buffers at real addresses, each range known to be alive, dead or nobody's."""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass

import cuda.bindings.runtime as genuine
import numpy as np

GARBAGE = 0xFF  # NaN in every type of floating point, -1 in whole numbers
ALIGNMENT = 512  # of what the driver hands out
REMEMBERED, MOST_REMEMBERED = 32 << 20, 2000  # bytes of dead allocations, and how many

Code = genuine.cudaError_t


class CudaFault(Exception):
    """What a call, or queued work, ends in.

    Attributes:
        code: as CUDA returns it.
        reason: what was wrong, for whoever reads a failing test.
    """

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code, self.reason = code, reason


@dataclass(frozen=True)
class Range:
    """Bytes that work reads or writes."""

    address: int
    size: int

    def overlaps(self, other: Range) -> bool:
        return self.address < other.address + other.size and other.address < self.address + self.size

    def __str__(self) -> str:
        return f"{self.size} bytes at {self.address:#x}"


@dataclass(eq=False)
class Block:
    """An allocation; `data` is uint8 [size]."""

    address: int
    data: np.ndarray
    on_device: bool
    alive: bool = True


class Memory:
    """All allocations, and dead ones for a while, so that their addresses don't come back at once."""

    def __init__(self, capacity: int) -> None:
        """Begin with `capacity` bytes of device memory, all free."""
        self.capacity = capacity
        self._addresses: list[int] = []
        self._blocks: list[Block] = []
        self._dead: deque[Block] = deque()
        self._dead_bytes = 0
        self._live = {True: 0, False: 0}  # bytes, on the device or not

    @property
    def live_bytes(self) -> int:
        """Of the device."""
        return self._live[True]

    @property
    def pinned_bytes(self) -> int:
        """Of the host, page-locked."""
        return self._live[False]

    @property
    def free_bytes(self) -> int:
        """Of the device."""
        return max(0, self.capacity - self.live_bytes)

    def allocate(self, size: int, on_device: bool = True) -> int:
        """The address of new memory, full of garbage; raises CudaFault when there is no room."""
        if on_device and _rounded(size) > self.free_bytes:
            raise CudaFault(Code.cudaErrorMemoryAllocation, f"{size} bytes asked for, {self.free_bytes} free")
        buffer = np.full(size + ALIGNMENT, GARBAGE, np.uint8)
        start = -buffer.ctypes.data % ALIGNMENT
        block = Block(buffer.ctypes.data + start, buffer[start : start + size], on_device)
        at = bisect.bisect(self._addresses, block.address)
        self._addresses.insert(at, block.address)
        self._blocks.insert(at, block)
        self._live[on_device] += _rounded(size)
        return block.address

    def release(self, address: int, on_device: bool = True) -> None:
        """End an allocation; raises CudaFault unless it is a living one of that kind."""
        block = self._before(address)
        if block is None or block.address != address or not block.alive or block.on_device != on_device:
            raise CudaFault(Code.cudaErrorInvalidValue, f"nothing allocated at {address:#x} can be freed so")
        block.alive = False
        block.data[:] = GARBAGE
        self._live[on_device] -= _rounded(block.data.size)
        self._dead.append(block)
        self._dead_bytes += block.data.size
        while self._dead_bytes > REMEMBERED or len(self._dead) > MOST_REMEMBERED:
            self._forget(self._dead.popleft())

    def _forget(self, block: Block) -> None:
        self._dead_bytes -= block.data.size
        at = bisect.bisect(self._addresses, block.address) - 1
        del self._addresses[at], self._blocks[at]

    def check(self, range_: Range, on_device: bool | None, code: Code = Code.cudaErrorInvalidValue) -> None:
        """Raise CudaFault unless a range lies in one living allocation, of the device or not."""
        if not range_.size:
            return
        block = self._before(range_.address)
        if block is None or range_.address + range_.size > block.address + block.data.size:
            raise CudaFault(code, f"{range_} is in no allocation, or beyond its end")
        if not block.alive:
            raise CudaFault(code, f"{range_} was freed")
        if on_device not in (None, block.on_device):
            raise CudaFault(code, f"{range_} is {'device' if block.on_device else 'host'} memory")

    def view(self, range_: Range) -> np.ndarray:
        """The bytes of a range that work uses: uint8; raises CudaFault with cudaErrorIllegalAddress."""
        self.check(range_, None, Code.cudaErrorIllegalAddress)
        if not range_.size:
            return np.empty(0, np.uint8)
        block = self._before(range_.address)
        assert block is not None
        start = range_.address - block.address
        return block.data[start : start + range_.size]

    def _before(self, address: int) -> Block | None:
        at = bisect.bisect(self._addresses, address) - 1
        return self._blocks[at] if at >= 0 else None


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
