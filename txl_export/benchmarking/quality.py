"""What a memory length is worth: a text scored as one long stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl_export.benchmarking.table import Quality
from txl_export.errors import InputError
from txl_export.runtime.engine import Engine
from txl_export.vocabulary import Vocabulary, reading_notes, splitting_at_blanks

TEXT_BYTES = 100_000
_BOUNDARY = 1000  # bytes before the end in which a blank is looked for, so that no word is cut


@dataclass(frozen=True)
class Text:
    """The beginning of a file.

    Attributes:
        name: of the file, as it was given.
        data: as much of it as is scored.
        pretokenized: whether its words are set apart by blanks already.
    """

    name: str
    data: bytes
    pretokenized: bool = False

    @classmethod
    def read(cls, path: str | Path, most: int = TEXT_BYTES, pretokenized: bool = False) -> Text:
        """Read a file's first bytes, up to `most`, and no part of a word; raises InputError."""
        if not isinstance(most, int) or isinstance(most, bool) or most < 2:
            raise InputError(f"text_bytes is {most!r}, expected 2 or more bytes")
        try:
            with Path(path).open("rb") as f:
                data = f.read(most + 1)
        except OSError as e:
            raise InputError(f"{path} cannot be read ({e.strerror}): give a text file") from None
        return cls(str(path), _whole_words(data, most), pretokenized)

    @property
    def digest(self) -> str:
        """Tells it from another text of that name, or from more of it."""
        return hashlib.sha256(self.data + b"\0pretokenized" * self.pretokenized).hexdigest()

    def read_by(self, vocab: Vocabulary) -> Vocabulary:
        """What takes it apart for a model with this vocabulary."""
        found = splitting_at_blanks(vocab) if self.pretokenized else vocab
        assert found is not None
        return found

    def notes(self, vocab: Vocabulary | None, segment_len: int) -> list[str]:
        """What a reader of its figures should know of how it was read, a line each."""
        return reading_notes(self.read_by(vocab), self.tokens(vocab, segment_len)) if vocab else []

    def tokens(self, vocab: Vocabulary, segment_len: int) -> np.ndarray:
        """Ids, int64 [n]: a first token, then whole segments, which every graph set can run exactly.

        Raises:
            InputError: not enough for one segment.
        """
        ids = self.read_by(vocab).encode(self.data)
        whole = (ids.size - 1) // segment_len * segment_len
        if whole < 1:
            raise InputError(
                f"{self.name} gives {ids.size} tokens, expected {segment_len + 1} or more: one segment and the token "
                "before it"
            )
        return ids[: whole + 1]


def _whole_words(data: bytes, most: int) -> bytes:
    if len(data) <= most:
        return data
    cut = max(data.rfind(blank, most - _BOUNDARY if most > _BOUNDARY else 0, most) for blank in (b" ", b"\n"))
    return data[: cut + 1 if cut >= 0 else most]


def score(
    engine: Engine, target: str, text: Text, segment_len: int, progress: Callable[[int, int], None] | None = None
) -> Quality:
    """Score a text from an empty memory on.

    Args:
        engine: with the M to be told about, and a vocabulary.
        target: its name.
        text: what to score.
        segment_len: tokens per segment.
        progress: called with (tokens done, tokens in all).
    """
    vocab = engine.info.vocab
    assert vocab is not None
    ids = text.tokens(vocab, segment_len)
    n = ids.size - 1
    nats = engine.score(ids, segment_len, (lambda done: progress(done, n)) if progress else None)
    nbytes = len(text.read_by(vocab).decode(ids[1:].tolist(), after=int(ids[0])))
    return Quality(target, engine.info.mem_len, segment_len, text.name, n, nats, nbytes)
