"""The vocabulary that needs no file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class ByteVocabulary:
    """Token i is byte i: 256 tokens, any file is text."""

    kind = "bytes"
    size = 256

    def encode(self, data: bytes, starts: bool = True, ends: bool = True) -> np.ndarray:
        """Ids of a text, int64 [n]."""
        del starts, ends  # a line break is a byte like others
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int], after: int | Sequence[int] | None = None) -> bytes:
        """The bytes of ids."""
        del after
        return bytes(int(i) for i in ids)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"kind": self.kind}

    def files(self) -> dict[str, bytes]:
        """None."""
        return {}
