"""What a text tells of the vocabulary that read it: many unknown words, or words in a wrong order."""

from __future__ import annotations

import numpy as np

from txl_export.vocabulary._base import Vocabulary
from txl_export.vocabulary._moses import PRETOKENIZED
from txl_export.vocabulary._symbols import SymbolVocabulary
from txl_export.vocabulary._units import MOSES

# In texts drawn from Zipf's law, of 300 tokens and more, from lists of 27 to 267,735 symbols, the correlation lies
# below -0.46 in the right order. In a random one it lies above -0.22, but for a few letters, where chance does more.
_MOST_CORRELATION, _OF_FEW = -0.25, -0.4
_FEW = 100
_FEWEST_TOKENS = 300
_MANY_UNKNOWN = 0.1


def reading_notes(vocab: Vocabulary, ids: np.ndarray) -> list[str]:
    """What a reader of figures on a text should know of how it was read, a line each.

    Args:
        vocab: what read it.
        ids: its tokens, int [n].
    """
    return [note for note in (unknown_note(vocab, ids), order_note(vocab, ids)) if note]


def unknown_note(vocab: Vocabulary, ids: np.ndarray) -> str | None:
    """That many words are unknown; None where few are."""
    if not isinstance(vocab, SymbolVocabulary) or vocab.unknown_id is None or not ids.size:
        return None
    share = float(np.mean(ids == vocab.unknown_id))
    if share <= _MANY_UNKNOWN:
        return None
    expected = PRETOKENIZED if vocab.kind == MOSES else "such as punctuation set apart by blanks"
    return (
        f"{share:.0%} of the tokens are {vocab.unknown}: the vocabulary expects its own kind of text ({expected}), and "
        "figures mean little on another"
    )


def order_note(vocab: Vocabulary, ids: np.ndarray) -> str | None:
    """That frequent words of the text have no small ids, as they have where words are ordered by frequency.

    Returns:
        None where they have, for vocabularies without an order, and for texts of fewer than 300 tokens.
    """
    if not isinstance(vocab, SymbolVocabulary):
        return None
    marks = [i for i, s in enumerate(vocab.symbols[:64]) if s in (vocab.line_start, vocab.line_end, vocab.unknown)]
    known = ids[~np.isin(ids, marks)]
    return order_of_counts(*np.unique(known, return_counts=True))


def order_of_counts(ids: np.ndarray, counts: np.ndarray) -> str | None:
    """That frequent words have no small ids; None where they have, or fewer than 300 were counted.

    Args:
        ids: of different words, [n].
        counts: how often each was seen, [n].
    """
    if counts.sum() < _FEWEST_TOKENS:
        return None
    correlation = _rank_correlation(ids, counts)
    expected = _MOST_CORRELATION if ids.size >= _FEW else _OF_FEW
    if correlation < expected:
        return None
    return (
        f"frequent words have no smaller ids than rare ones (rank correlation {correlation:+.2f}, expected below "
        f"{expected}): the words may be in another order than the model's"
    )


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's; -1 where one of them does not vary, which shows nothing."""
    if a.size < 2 or np.ptp(b) == 0:
        return -1.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value, the mean rank where values are equal."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]
