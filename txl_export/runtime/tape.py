"""Tokens of a feed as its calls take them, and answers as they come: host arrays here, a GPU's in its backends."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from txl_export.calls import Call


class Source(Protocol):
    """Tokens of a feed."""

    def take(self, call: Call) -> Any:
        """Those of a call, [B, L or 1]."""
        ...


class Sink(Protocol):
    """An answer of a feed."""

    def block(self, call: Call) -> Any:
        """Where a call writes its answer, [B, L or 1, ...], contiguous."""
        ...

    def put(self, call: Call, block: Any) -> None:
        """Take over what of it counts."""
        ...


class HostSource:
    """Tokens in a numpy array, [B, n], or [B, 1] where only the last counts."""

    def __init__(self, tokens: np.ndarray, last_only: bool = False) -> None:
        """Take checked tokens."""
        self.tokens, self.last_only = tokens, last_only

    def take(self, call: Call) -> np.ndarray:
        """See `Source.take`."""
        if self.last_only:
            return self.tokens
        if call.whole:
            start = int(call.starts[0])
            return np.ascontiguousarray(self.tokens[:, start : start + call.length])
        places = np.minimum(call.starts[:, None] + np.arange(call.length), self.tokens.shape[1] - 1)
        return np.ascontiguousarray(np.take_along_axis(self.tokens, places, 1))


class HostSink:
    """An answer in a numpy array, [B, n or 1, ...]."""

    def __init__(self, answer: np.ndarray, last_only: bool, counts: np.ndarray) -> None:
        """Take the whole answer.

        Args:
            answer: to be filled.
            last_only: whether only each stream's last token is answered.
            counts: tokens of each stream, int64 [B].
        """
        self.answer, self.last_only, self.counts = answer, last_only, counts

    def _part(self, call: Call) -> np.ndarray:
        start = 0 if self.last_only else int(call.starts[0])
        return self.answer[:, start : start + (1 if self.last_only else call.length)]

    def block(self, call: Call) -> np.ndarray:
        """See `Sink.block`: the answer's own part where that is contiguous, as a graph writes."""
        if call.whole:
            part = self._part(call)
            return part if part.flags.c_contiguous else np.empty_like(part, order="C")
        rows = 1 if self.last_only else call.length
        return np.empty((len(self.answer), rows, *self.answer.shape[2:]), self.answer.dtype)

    def put(self, call: Call, block: Any) -> None:
        """See `Sink.put`."""
        if call.whole:
            part = self._part(call)
            if block.ctypes.data != part.ctypes.data:
                part[...] = block
            return
        for b, at, n in call.counted(self.last_only, self.counts):
            self.answer[b, at : at + n] = block[b, :n]
