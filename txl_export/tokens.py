"""Which tokens a verification or calibration runs on: a text, given ids, or seeded random ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from txl_export.errors import InputError
from txl_export.vocabulary import Vocabulary, reading_notes


@dataclass(frozen=True)
class Tokens:
    """Tokens for B streams.

    Attributes:
        ids: int64 [B, segments * segment_len + 1]; the last is a target only.
        source: where they come from, for the report.
        real: whether they are text that the model may know, on which perplexity means something.
        notes: what a reader of figures on the text should know of how it was read, a line each.
    """

    ids: np.ndarray
    source: str
    real: bool
    notes: tuple[str, ...] = ()


def choose(
    text: bytes | None,
    ids: np.ndarray | None,
    random: int | None,
    vocab: Vocabulary | None,
    vocab_size: int,
    batch_size: int,
    length: int,
) -> Tokens:
    """The tokens of a run.

    Args:
        text: encoded by the vocabulary and dealt to the streams in equal, adjoining parts.
        ids: integers [n], dealt likewise, or [B, n].
        random: a seed; the source where nothing is given, with seed 0.
        vocab: the bundle's vocabulary.
        vocab_size: V.
        batch_size: B.
        length: tokens wanted per stream; fewer are taken where the text is shorter.

    Raises:
        InputError: several sources, no vocabulary for a text, or fewer than two tokens per stream.
    """
    if sum(source is not None for source in (text, ids, random)) > 1:
        raise InputError("text, ids and random exclude each other: give one of them")
    if text is not None:
        if vocab is None:
            raise InputError("this bundle has no vocabulary to read text with: give token ids (--ids FILE.npy) instead")
        read = vocab.encode(text)
        notes = tuple(reading_notes(vocab, read))
        return Tokens(_dealt(read, batch_size, length, vocab_size), "text", True, notes)
    if ids is not None:
        return Tokens(_dealt(np.asarray(ids), batch_size, length, vocab_size), "ids", True)
    seed = random or 0
    drawn = np.random.default_rng(seed).integers(0, vocab_size, (batch_size, length))
    return Tokens(drawn, f"random ids, seed {seed}", False)


def _dealt(ids: np.ndarray, batch_size: int, length: int, vocab_size: int) -> np.ndarray:
    if ids.dtype.kind not in "iu":
        raise InputError(f"ids have dtype {ids.dtype}, expected integers")
    if ids.ndim == 1:
        ids = ids[: ids.size // batch_size * batch_size].reshape(batch_size, -1)
    if ids.ndim != 2 or ids.shape[0] != batch_size or ids.shape[1] < 2:
        raise InputError(
            f"the text or ids give {list(ids.shape)} tokens, expected two or more for each of {batch_size} streams"
        )
    taken = ids[:, :length]
    low, high = taken.min(), taken.max()
    if low < 0 or high >= vocab_size:
        raise InputError(f"ids hold {low if low < 0 else high}, expected tokens from 0 to {vocab_size - 1}")
    return taken.astype(np.int64)
