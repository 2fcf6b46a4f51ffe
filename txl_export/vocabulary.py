"""Vocabularies: text to token ids and back. Here the one that needs no file, bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from txl_export.errors import CheckpointError


class Vocabulary(Protocol):
    """Maps text to token ids and back."""

    kind: str

    def encode(self, data: bytes) -> np.ndarray:
        """Ids of a text, int64 [n]."""
        ...

    def decode(self, ids: Iterable[int]) -> bytes:
        """The text of ids, as UTF-8 bytes (possibly cut inside a character)."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict that `vocabulary_from_dict` takes back."""
        ...


class ByteVocabulary:
    """Token i is byte i: 256 tokens, any file is text."""

    kind = "bytes"
    size = 256

    def encode(self, data: bytes) -> np.ndarray:
        """Ids of a text, int64 [n]."""
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids."""
        return bytes(int(i) for i in ids)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"kind": self.kind}


# One line per kind of vocabulary.
_KINDS: dict[str, Callable[[Mapping[str, Any]], Vocabulary]] = {"bytes": lambda _: ByteVocabulary()}


def vocabulary_from_dict(value: Mapping[str, Any] | None) -> Vocabulary | None:
    """The vocabulary that a config or manifest describes; None where it describes none.

    Raises:
        CheckpointError: for an unknown kind.
    """
    if value is None:
        return None
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(f"vocabulary kind {kind!r} is unknown: known are {', '.join(_KINDS)}")
    return _KINDS[kind](value)
