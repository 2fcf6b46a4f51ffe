"""What every vocabulary offers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np


class Vocabulary(Protocol):
    """Maps text to token ids and back."""

    kind: str

    @property
    def size(self) -> int:
        """How many tokens it has."""
        ...

    def encode(self, data: bytes, starts: bool = True, ends: bool = True) -> np.ndarray:
        """Ids of a text, int64 [n].

        Args:
            data: the text.
            starts: its first line is a line from its start, which some models mark with a token.
            ends: its last line ends where the text does, though no line break follows; a prompt that goes on
                does not, and gets no token for the end of a line.

        Raises:
            InputError: it holds something that the vocabulary has no token for.
        """
        ...

    def decode(self, ids: Iterable[int], after: int | Sequence[int] | None = None) -> bytes:
        """The text of ids, as UTF-8 bytes (possibly cut inside a character).

        Args:
            ids: tokens.
            after: the token before them, or all tokens that came before, which decide whether a space comes first:
                texts of parts that were decoded one after another, each after all before it, make the text of the
                whole.
        """
        ...

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict that `load_vocabulary` takes back."""
        ...

    def files(self) -> dict[str, bytes]:
        """Files that belong beside that dict, by name; few vocabularies need none."""
        ...
