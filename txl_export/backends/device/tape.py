"""Tokens and answers of a feed that are on the GPU already: nothing of them passes through the host."""

from __future__ import annotations

import contextlib

import numpy as np

from txl_export.backends.device.arrays import DeviceArray, taken
from txl_export.backends.device.calls import Cuda, Owned
from txl_export.calls import Call
from txl_export.errors import DeviceError

_ALL_ONES = 0xFF  # NaN as a float of any size, -1 as an integer


class DeviceSide:
    """What a session needs to take and give arrays of the GPU that holds its memory."""

    def __init__(self, cuda: Cuda, stream: Owned) -> None:
        """Take the GPU and the session's stream."""
        self.cuda, self.stream = cuda, stream
        self._lenders: set[int] = set()
        self._mark: Owned | None = None

    def taken(self, value: object, what: str, written: bool = False) -> DeviceArray:
        """A caller's array; see `txl_export.backends.device.arrays.taken`."""
        array, lender = taken(value, self.cuda, self.stream, what, written)
        self._lenders.add(lender)
        return array

    def give_back(self) -> None:
        """Let the streams that callers' arrays came from wait for what was done with them.

        So an answer is there for who reads it in that stream, and tokens may be written over in it.
        """
        others = self._lenders - {int(self.stream.handle)}
        self._lenders.clear()
        if others:
            self._mark = self._mark or self.cuda.event()
            self.cuda.record(self._mark, self.stream)
            for stream in others:
                self.cuda.wait_in(stream, self._mark)

    def settle(self) -> None:
        """Wait for what a feed that failed has queued: nobody else will, and it uses callers' arrays."""
        self._lenders.clear()
        with contextlib.suppress(DeviceError):  # the failure is told already
            self.cuda.wait(self.stream)

    def empty(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """A new array for an answer."""
        return DeviceArray.empty(self.cuda, self.stream, shape, dtype)

    def source(self, tokens: DeviceArray, last_only: bool = False) -> DeviceSource:
        """Tokens as calls take them."""
        return DeviceSource(self, tokens, last_only)

    def sink(self, answer: DeviceArray, last_only: bool, counts: np.ndarray) -> DeviceSink:
        """An answer as calls give it."""
        return DeviceSink(self, answer, last_only, counts)

    def blank(self, answer: DeviceArray) -> None:
        """Fill an answer with NaN, or -1."""
        self.cuda.fill(answer.address, _ALL_ONES, answer.nbytes, self.stream)


def _part(array: DeviceArray, start: int, n: int) -> DeviceArray:
    """Columns of an array of one stream."""
    at = array.address + start * (array.nbytes // array.shape[1])
    return DeviceArray(array._cuda, array._stream, (1, n, *array.shape[2:]), array.dtype.str, at, array)


class DeviceSource:
    """Tokens on the device, [B, n], or [B, 1] where only the last counts."""

    def __init__(self, side: DeviceSide, tokens: DeviceArray, last_only: bool) -> None:
        """Take a caller's tokens."""
        self.side, self.tokens, self.last_only = side, tokens, last_only

    def take(self, call: Call) -> DeviceArray:
        """See `Source.take`: a part of the caller's array where that is contiguous, else a copy on the device."""
        B, n = self.tokens.shape
        if self.last_only or (call.whole and call.length == n):
            return self.tokens
        if call.whole and B == 1:
            return _part(self.tokens, int(call.starts[0]), call.length)
        item = self.tokens.dtype.itemsize
        block = self.side.empty((B, call.length), self.tokens.dtype.str)
        self.side.cuda.fill(block.address, 0, block.nbytes, self.side.stream)  # padding must be tokens
        for b in np.flatnonzero(call.valid).tolist():
            source = self.tokens.address + (b * n + int(call.starts[b])) * item
            count = int(call.valid[b]) * item
            self.side.cuda.copy(block.address + b * call.length * item, source, count, self.side.stream)
        return block


class DeviceSink:
    """An answer on the device, [B, n or 1, ...]."""

    def __init__(self, side: DeviceSide, answer: DeviceArray, last_only: bool, counts: np.ndarray) -> None:
        """Take the whole answer; see `HostSink`."""
        self.side, self.answer, self.last_only, self.counts = side, answer, last_only, counts

    def block(self, call: Call) -> DeviceArray:
        """See `Sink.block`."""
        rows = 1 if self.last_only else call.length
        B, n = self.answer.shape[:2]
        if call.whole and rows == n:
            return self.answer
        if call.whole and B == 1:
            return _part(self.answer, int(call.starts[0]), rows)
        return self.side.empty((B, rows, *self.answer.shape[2:]), self.answer.dtype.str)

    def put(self, call: Call, block: DeviceArray) -> None:
        """See `Sink.put`."""
        B, n = self.answer.shape[:2]
        if block is self.answer or (call.whole and B == 1):
            return
        rows, row = block.shape[1], self.answer.nbytes // (B * n)
        for b, at, count in call.counted(self.last_only, self.counts):
            to = self.answer.address + (b * n + at) * row
            self.side.cuda.copy(to, block.address + b * rows * row, count * row, self.side.stream)
