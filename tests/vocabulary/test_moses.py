"""Raw text for Hugging Face's words: as its own tokenizer takes it apart and puts it together."""

from __future__ import annotations

import functools
import pickle
import random
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tests.bundles import one_line
from tests.checkpoints.test_huggingface import BASE, their_tensors, write
from tests.helpers import import_or_skip
from txl_export import load_checkpoint
from txl_export.checkpoints import native
from txl_export.errors import CheckpointError, EnvironmentMismatch, InputError
from txl_export.vocabulary import SymbolVocabulary, _moses, splitting_at_blanks

import_or_skip("sacremoses", "needs the extra [words]")

LINES = [
    "23,000 people are 1.80m tall, and 1,234.5 is not 1,234,567.89.",
    "A state-of-the-art, well-known re-entry; the 1990s-2000s -- or not.",
    "He said: \"It's the dog's bone, isn't it?\" 'Yes', she said (twice).",
    "The Jones' house; rock 'n' roll; O'Brien; l'été; '90s",
    "Ünïcode, naïve café – a dash — and another… «quoted» “text” \u2018here\u2019",
    "日本語 のテキスト and 한국어 mixed, $5.00 £3 €2,50 50%",
    "Mr. Smith went to Washington D.C. at 5 p.m. on Jan. 3, 2001. No. 5 etc.",
    "http://example.org/a_b?c=d&e=f user@example.org #tag @name a/b and/or",
    "tabs\tand   many    blanks \u00a0and\u2009thin ones",
    "the <unk> of <eos> and <UNK> <formula> x<unk>y <b>bold</b>",
    "e.g. i.e. ... .. wait... what?! A,B,C,D 1,a a,1 ,x x,",
    "&amp; &lt;tag&gt; | [brackets] {braces} ~ ^ \\ ` ``quotes''",
    "DOTMULTI .DOTDOTMULTI 3.14.15 10:30 -5 +7 2×3 x=y",
    "",
    "   ",
    "-",
    "@-@ @,@ already 5 @,@ 000 apart @.@",
]
PIECES = [
    "a", "B", "é", "1", ",", ".", "-", "'", '"', "'s", "n't", "--", "...", "$", "(", ")", "<unk>", "&", "@", "/", "日",
    "–", "\u2019", "“", "\u00a0", "5,000", "1.5", "co-op", "Mr.", ":", ";", "!", "?", "%",
]  # fmt: skip
WORDS = sorted({w for line in LINES for w in _moses.split(line)})[::2]
VOCAB = SymbolVocabulary(["<eos>", "<unk>", *(w for w in WORDS if w not in _moses.SPECIAL)], "moses-words",
                         line_end="<eos>", unknown="<unk>")  # fmt: skip


@functools.cache
def theirs(lower_case: bool = False) -> Any:
    """transformers' own tokenizer with the words of VOCAB."""

    from tests.huggingface_models import transformers

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.pkl"
        ids = OrderedDict((s, i) for i, s in enumerate(VOCAB.symbols))
        path.write_bytes(pickle.dumps({"idx2sym": list(VOCAB.symbols), "sym2idx": ids, "unk_idx": 1}))
        made = transformers.TransfoXLTokenizer(pretrained_vocab_file=str(path), lower_case=lower_case)
    made.idx2sym = list(VOCAB.symbols)
    return made


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_split_as_by_hugging_faces_tokenizer(line):
    assert _moses.split(line) == theirs().tokenize(line)
    ids = [i if i < VOCAB.size else 1 for i in theirs().encode(line)]  # they give words of their own new numbers
    assert VOCAB.encode(line.encode(), ends=False).tolist() == ids
    assert _moses.join(_moses.split(line)) == theirs().convert_tokens_to_string(_moses.split(line))


def test_random_lines_are_split_and_joined_as_by_hugging_faces_tokenizer():
    rng = random.Random(0)
    for _ in range(300):
        line = "".join(rng.choice(PIECES) + rng.choice(("", " ")) for _ in range(rng.randrange(1, 14)))
        found = _moses.split(line)
        assert found == theirs().tokenize(line), line
        assert _moses.join(found) == theirs().convert_tokens_to_string(found), line


def test_lower_case_is_before_the_rules():
    lower = SymbolVocabulary(VOCAB.symbols, "moses-words", lower_case=True, line_end="<eos>", unknown="<unk>")
    for line in ("He SAID <unk> Mr. Smith", "A WELL-Known Re-Entry"):
        ours = [lower.symbols[i] for i in lower.encode(line.encode(), ends=False)]
        known = set(lower.symbols)
        assert ours == [w if w in known else "<unk>" for w in theirs(lower_case=True).tokenize(line)]


def test_lines_end_and_texts_come_back():
    text = 'He paid 5,000 for 1.5 kg of well-known "tea" (now).\nIt\'s (not) cheap.\n\nThe end'
    words = sorted({w for line in text.splitlines() for w in _moses.split(line)})
    vocab = SymbolVocabulary(["<eos>", *words], "moses-words", line_end="<eos>")
    ids = vocab.encode(text.encode(), ends=False)
    assert vocab.symbols[0] == "<eos>" and (ids == 0).sum() == 3 and ids[-1] != 0
    assert vocab.decode(ids).decode() == text
    for cut in range(len(ids) + 1):  # however a text is cut, the parts make it, each decoded after all before
        before, rest = ids[:cut].tolist(), ids[cut:].tolist()
        parts = vocab.decode(before) + vocab.decode(rest, before)
        assert parts.decode() == text, cut
    one_by_one = b"".join(vocab.decode([int(t)], ids[:i].tolist()) for i, t in enumerate(ids))
    assert one_by_one.decode() == text


def test_a_sign_that_joins_waits_for_what_it_joins():
    vocab = SymbolVocabulary(["<eos>", "5", "@,@", "000"], "moses-words", line_end="<eos>")
    assert vocab.decode([1, 2]) == b"5" and vocab.decode([2], [1]) == b""
    assert vocab.decode([3], [1, 2]) == b",000" and vocab.decode([1, 2, 3, 0, 1]) == b"5,000\n5"
    assert vocab.decode([1, 2, 0]) == b"5 @,@\n"  # nothing follows in its line
    assert vocab.decode([1], 0) == b"5" and vocab.decode([1], 3) == b" 5" and vocab.decode([9]) == b"<9>"


def test_text_whose_words_are_apart_already():
    vocab = splitting_at_blanks(VOCAB)
    assert vocab is not None and vocab.kind == "words"
    apart = " ".join(WORDS[:9]).encode()
    assert vocab.decode(vocab.encode(apart, ends=False)) == apart
    assert VOCAB.encode(apart).tolist() != vocab.encode(apart).tolist()
    letters = SymbolVocabulary(["a", "b"], "characters")
    assert splitting_at_blanks(letters) is letters and splitting_at_blanks(None) is None


def test_without_the_package(monkeypatch):
    """Raw text is refused in a line that names the extra; what was generated stands between blanks."""
    _moses._rules.cache_clear()
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(EnvironmentMismatch) as e:
        VOCAB.encode(b"It is 5,000.")
    text = one_line(e.value)
    assert "txl-export[words]" in text and "--pretokenized" in text
    assert VOCAB.decode([0, 0]) == b"\n\n" and _moses.join(["5", "@,@", "000"]) == "5 @,@ 000"
    assert splitting_at_blanks(VOCAB).encode(b"qqq zzz").tolist() == [1, 1, 0]
    monkeypatch.undo()
    _moses._rules.cache_clear()


def test_more_protected_words_than_the_rules_can_take():
    with pytest.raises(InputError, match="break it up"):
        _moses.split("<UNK> " * 1001)


def test_a_folder_of_hugging_face_is_read_by_its_tokenizers_rules(tmp_path):
    folder = write(tmp_path / "m", BASE, their_tensors(BASE))
    symbols = ["<eos>", "<unk>", "It", "it", "'s", "5", "@,@", "000", ".", *(f"w{i}" for i in range(20))]
    (folder / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": symbols, "lower_case": True}))
    loaded = load_checkpoint(folder)
    assert loaded.vocab.kind == "moses-words" and "--pretokenized" in loaded.notes[0]
    assert loaded.vocab.encode(b"It's 5,000.\n").tolist() == [2, 4, 5, 6, 7, 8, 0]  # its pickle's options do not count
    (folder / "tokenizer_config.json").write_text('{"lower_case": true}')
    loaded = load_checkpoint(folder)
    assert loaded.vocab.encode(b"It's").tolist() == [3, 4, 0]
    native.save(tmp_path / "n", loaded)
    assert load_checkpoint(tmp_path / "n").vocab.encode(b"It's").tolist() == [3, 4, 0]
    (folder / "tokenizer_config.json").write_text('{"language": "de"}')
    loaded = load_checkpoint(folder)
    assert loaded.vocab.kind == "words" and "language is 'de'" in loaded.notes[0]
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        load_checkpoint(folder)
