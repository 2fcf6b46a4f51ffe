"""Memory of the stand-in for a GPU: host buffers at real addresses, each range known to be alive, dead or nobody's."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import cuda.bindings.runtime as genuine
import numpy as np

GARBAGE = 0xFF  # NaN in every type of floating point, -1 in whole numbers
ALIGNMENT = 512  # of what the driver hands out

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
    """All allocations since the beginning: the buffers of dead ones are kept, so that no address comes back."""

    def __init__(self, capacity: int) -> None:
        """Begin with `capacity` bytes of device memory, all free."""
        self.capacity = capacity
        self._addresses: list[int] = []
        self._blocks: list[Block] = []

    @property
    def live_bytes(self) -> int:
        """Of the device."""
        return sum(_rounded(b.data.size) for b in self._blocks if b.alive and b.on_device)

    @property
    def pinned_bytes(self) -> int:
        """Of the host, page-locked."""
        return sum(b.data.size for b in self._blocks if b.alive and not b.on_device)

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
        return block.address

    def release(self, address: int, on_device: bool = True) -> None:
        """End an allocation; raises CudaFault unless it is a living one of that kind."""
        block = self._before(address)
        if block is None or block.address != address or not block.alive or block.on_device != on_device:
            raise CudaFault(Code.cudaErrorInvalidValue, f"nothing allocated at {address:#x} can be freed so")
        block.alive = False
        block.data[:] = GARBAGE

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
