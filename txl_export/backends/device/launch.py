"""One graph's calls on a stream: put there directly at first, then as a CUDA graph."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

from txl_export.backends.device.calls import Cuda, Owned
from txl_export.errors import DeviceError

Addresses = Mapping[str, int]
_LOGGER = logging.getLogger("txl_export")
MOST_CAPTURED = 16  # of one graph: orientations of buffers that take turns, and a caller's own buffers


class Executor(Protocol):
    """What runs one graph for one session."""

    def shape(self, length: int) -> None:
        """Take calls of so many tokens from now on."""

    def enqueue(self, addresses: Addresses) -> None:
        """Put one call in the session's stream; raises DeviceError."""


class Launcher:
    """Calls of one graph, each kind captured when it is seen again.

    A kind is a length and the addresses of all tensors, which a captured call fixes. The first call of a kind runs
    directly, which settles what the executor left undone when shapes changed. The second does too, and right behind
    it the same work is captured without being run: no call is made for the sake of capturing, so that nothing has to
    be restored. From the third on the captured work is launched.

    Attributes:
        why_not: why nothing is captured any more; None while it is.
    """

    def __init__(self, cuda: Cuda, stream: Owned, executor: Executor, capture: bool = True) -> None:
        """Take what runs; `capture` False puts every call directly."""
        self.cuda, self.stream, self.executor = cuda, stream, executor
        self.why_not: str | None = None if capture else "not asked for"
        self._captured: OrderedDict[tuple[int, ...], Owned | None] = OrderedDict()
        self._length = 0

    def __call__(self, length: int, addresses: Addresses) -> None:
        """Put a call in the stream; raises DeviceError."""
        kind = (length, *addresses.values())
        graph = self._captured.get(kind)
        if graph is not None:
            self._captured.move_to_end(kind)
            self.cuda.launch(graph, self.stream)
            return
        if length != self._length:
            self._length = 0  # until all shapes are set
            self.executor.shape(length)
            self._length = length
        self.executor.enqueue(addresses)
        if self.why_not is None:
            self._captured[kind] = self._capture(addresses) if kind in self._captured else None
            self._captured.move_to_end(kind)
            if len(self._captured) > MOST_CAPTURED:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        if next(iter(self._captured.values())) is not None:
            self.cuda.wait(self.stream)  # it may be running
        self._captured.popitem(last=False)

    def _capture(self, addresses: Addresses) -> Owned | None:
        try:
            return self.cuda.capture(self.stream, lambda: self.executor.enqueue(addresses))
        except DeviceError as e:  # the call itself has been put in the stream already
            self.why_not = str(e)
            _LOGGER.warning("calls of a graph are not run as CUDA graphs, which makes them slower: %s", e)
            return None
