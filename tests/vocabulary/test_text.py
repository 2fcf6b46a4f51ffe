"""What a text tells of the vocabulary that read it."""

from __future__ import annotations

import numpy as np
import pytest

from txl_export.vocabulary import (
    ByteVocabulary,
    SymbolVocabulary,
    order_note,
    order_of_counts,
    reading_notes,
    unknown_note,
)


def zipf(size: int, length: int, seed: int) -> np.ndarray:
    """Ids as in a text whose words are numbered from the most frequent on."""
    p = 1 / np.arange(1, size + 1)
    return np.random.default_rng(seed).choice(size, length, p=p / p.sum())


def words(size: int) -> SymbolVocabulary:
    return SymbolVocabulary(["<eos>", "<unk>", *(f"w{i}" for i in range(size - 2))], line_end="<eos>", unknown="<unk>")


@pytest.mark.parametrize("size", [27, 204, 20_000, 267_735])
@pytest.mark.parametrize("length", [400, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_order_is_noticed_and_the_right_one_is_not(size, length, seed):
    ids, vocab = zipf(size, length, seed), words(size)
    assert order_note(vocab, ids) is None
    shuffled = np.random.default_rng(seed).permutation(size)[ids]
    for wrong in (size - 1 - ids, *[shuffled] * (size > 100)):  # few letters may fall into any order by chance
        note = order_note(vocab, wrong)
        assert note is not None and "another order" in note and "\n" not in note


def test_short_texts_and_bytes_show_nothing():
    ids = zipf(1000, 299, 0)
    assert order_note(words(1000), 999 - ids) is None
    assert order_note(ByteVocabulary(), 255 - zipf(256, 5000, 0)) is None


def test_marks_do_not_count():
    """A text of few words and very many ends of lines: the words alone decide."""
    wrong = 999 - zipf(998, 290, 0)
    assert order_note(words(1000), np.concatenate([wrong, np.zeros(5000, dtype=np.int64)])) is None
    assert order_note(words(1000), np.concatenate([wrong, wrong])) is not None


def test_words_that_were_all_seen_equally_often():
    assert order_of_counts(np.arange(500), np.ones(500)) is None


def test_many_unknown_words_are_told():
    vocab = words(1000)
    ids = np.full(100, 5)
    ids[:10] = vocab.unknown_id
    assert unknown_note(vocab, ids) is None
    ids[:40] = vocab.unknown_id
    assert "40% of the tokens are <unk>" in unknown_note(vocab, ids)
    assert unknown_note(SymbolVocabulary(("a", "b")), ids) is None
    assert unknown_note(vocab, ids[:0]) is None
    (note,) = reading_notes(vocab, ids)
    assert "40%" in note
