"""Text to ids and back, by the rules that the origins' data was made with."""

from __future__ import annotations

import numpy as np
import pytest

from txl_export.errors import CheckpointError, InputError
from txl_export.vocabulary import ByteVocabulary, SymbolVocabulary, load_vocabulary, unit_of

WORDS = ("<eos>", "the", "cat", "sat", "<unk>", "Ünïcode", "@-@")
EOS = SymbolVocabulary(WORDS, line_end="<eos>", unknown="<unk>")
LM1B = SymbolVocabulary(("</S>", "<S>", "<UNK>", "the", "cat"), line_start="<S>", line_end="<S>", unknown="<UNK>")
STRICT = SymbolVocabulary(("the", "cat"))
LETTERS = SymbolVocabulary(("_", "e", "t", "a"), kind="text8", lower_case=True)
NUMBERS = SymbolVocabulary(("32", "101", "195", "164", "13"), kind="byte-numbers", lower_case=True)
CHARACTERS = SymbolVocabulary((" ", "a", "ß", "<eos>"), kind="characters", delimiter="", line_end="<eos>")


@pytest.mark.parametrize(
    ("vocab", "text", "ids"),
    [
        (EOS, " the cat \n sat\n", [1, 2, 0, 3, 0]),
        (EOS, "the\r\ncat\rsat", [1, 0, 2, 0, 3, 0]),  # ends of lines as `open` reads them, the last one too
        (EOS, "\n\nthe", [0, 0, 1, 0]),
        (EOS, "the dog Ünïcode <eos>", [1, 4, 5, 0, 0]),
        (EOS, "THE\u00a0cat\tsat", [4, 2, 3, 0]),  # all blanks separate, case counts
        (LM1B, "the cat\nthe\n", [1, 3, 4, 1, 1, 3, 1]),
        (STRICT, "the cat\ncat", [0, 1, 1]),
        (LETTERS, "Tea at\ntea", [2, 1, 3, 0, 3, 2, 0, 2, 1, 3]),
        (NUMBERS, "e ä\ne\r", [1, 0, 2, 3, 1, 4]),
        (CHARACTERS, " a ß\n", [1, 0, 2, 3]),
        (SymbolVocabulary(("THE", "the"), lower_case=True), "THE The", [1, 1]),
        (SymbolVocabulary(("a b", "c"), delimiter="|"), "a b|c", [0, 1]),
    ],
)
def test_encode(vocab, text, ids):
    found = vocab.encode(text.encode())
    assert found.dtype == np.int64 and found.tolist() == ids


def test_a_prompt_goes_on():
    assert EOS.encode(b"the cat", ends=False).tolist() == [1, 2]
    assert EOS.encode(b"the cat\n", ends=False).tolist() == [1, 2, 0]
    assert LM1B.encode(b"cat", ends=False).tolist() == [1, 4]
    assert LM1B.encode(b"cat", starts=False, ends=False).tolist() == [4]
    assert LM1B.encode(b"\ncat", starts=False, ends=False).tolist() == [1, 1, 4]
    assert EOS.encode(b"").dtype == np.int64 and not EOS.encode(b"").size


@pytest.mark.parametrize(
    ("vocab", "text"),
    [
        (EOS, "the cat\nsat\n\nthe"),
        (LM1B, "the cat\ncat\n"),
        (LETTERS, "tea at"),
        (NUMBERS, "e ä"),
        (CHARACTERS, "a ß\na\n"),
        (ByteVocabulary(), "any \n thing ß"),
    ],
)
def test_decode_gives_the_text_back_in_any_cut(vocab, text):
    ids = vocab.encode(text.encode(), ends=False).tolist()
    assert vocab.decode(ids).decode() == text
    for cut in range(1, len(ids)):
        assert vocab.decode(ids[:cut]) + vocab.decode(ids[cut:], after=ids[cut - 1]) == text.encode()


def test_tokens_without_a_symbol():
    assert EOS.decode([1, 7, 2, -1]) == b"the <7> cat <-1>"


def test_what_is_unknown_is_named():
    with pytest.raises(InputError, match=r"no 'd\\xf6g' and no symbol for what is unknown") as e:
        STRICT.encode("the dög".encode())
    assert "\n" not in str(e.value)
    with pytest.raises(InputError, match=r"no 'a{39}\.\.\. and"):
        STRICT.encode(b"a" * 100_000)
    with pytest.raises(InputError, match="no '255'"):
        NUMBERS.encode(b"e\n\xff")


def test_bytes_that_are_no_text():
    with pytest.raises(InputError, match=r"not utf-8 \(byte ff\)") as e:
        EOS.encode(b"the \xff cat")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("vocab", [EOS, LM1B, STRICT, LETTERS, NUMBERS, CHARACTERS, ByteVocabulary()])
def test_saved_and_loaded(tmp_path, vocab):
    for name, content in vocab.files().items():
        (tmp_path / name).write_bytes(content)
    loaded = load_vocabulary(vocab.to_dict(), tmp_path)
    assert loaded.to_dict() == vocab.to_dict() and loaded.size == vocab.size
    assert getattr(loaded, "symbols", None) == getattr(vocab, "symbols", None)
    text = "\n".join(("the cat", "tea", "e"))
    if vocab.kind in ("words", "bytes") and vocab is not STRICT:
        assert loaded.encode(text.encode()).tolist() == vocab.encode(text.encode()).tolist()


def test_every_symbol_survives_saving(tmp_path):
    odd = SymbolVocabulary(("\u2028", "\x85", '"', "\\", "\n", "\ud800", ""), kind="characters")
    (tmp_path / "vocabulary.json").write_bytes(odd.files()["vocabulary.json"])
    assert load_vocabulary(odd.to_dict(), tmp_path).symbols == odd.symbols


def test_a_file_that_is_not_the_one_saved(tmp_path):
    def refused(value, word):
        with pytest.raises(CheckpointError, match=word) as e:
            load_vocabulary(value, tmp_path)
        assert "\n" not in str(e.value)

    value, file = EOS.to_dict(), tmp_path / "vocabulary.json"
    refused(value, "is missing")
    swapped = EOS.files()["vocabulary.json"].replace(b'"cat"', b'"dog"')
    file.write_bytes(swapped)
    refused(value, "SHA-256 differs")
    file.write_bytes(EOS.files()["vocabulary.json"])
    refused(value | {"size": 3}, "no list of 3 symbols")
    refused(value | {"file": "../vocabulary.json"}, "only plain names")
    refused(value | {"line_end": "</s>"}, "lacks '</s>'")
    refused(value | {"colour": 1}, "no readable vocabulary")
    refused(value | {"kind": "syllables"}, "kind 'syllables' is unknown: known are bytes, words")
    refused(["words"], "kind None is unknown")


def test_symbols_that_cannot_be_a_vocabulary():
    for symbols, rules, word in (
        (("a", "b", "a"), {}, "'a' twice"),
        ((), {}, "0 symbols"),
        (("a", 3), {}, "no text"),
        (("a",), {"unknown": "<unk>"}, "lacks '<unk>', which its unknown names"),
        (("a",), {"delimiter": ""}, "delimiter is empty"),
        (("a",), {"lower_case": 1}, "cannot be read"),
    ):
        with pytest.raises(CheckpointError, match=word):
            SymbolVocabulary(symbols, **rules)


def test_units_are_seen_in_the_symbols():
    assert unit_of(["<eos>", "the"], None) == "words"
    assert unit_of(["32", "101"], None) == "byte-numbers"
    assert unit_of(["32", "256"], None) == "words"
    assert unit_of(["_", "e", "t"], None) == "text8"
    assert unit_of(["_", "e", "T"], None) == "words"
    assert unit_of([" ", "e"], "") == "characters"
