"""Raw text for Hugging Face's words: as its own tokenizer takes it apart and puts it together."""

from __future__ import annotations

import builtins
import functools
import pickle
import random
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from txl_export.errors import EnvironmentMismatch, InputError
from txl_export.vocabulary import SymbolVocabulary, _moses, pretokenized

pytest.importorskip("sacremoses", reason="needs the extra [words]")

LINES = [
    "23,000 people are 1.80m tall, and 1,234.5 is not 1,234,567.89.",
    "A state-of-the-art, well-known re-entry; the 1990s-2000s -- or not.",
    "He said: \"It's the dog's bone, isn't it?\" 'Yes', she said (twice).",
    "The Jones' house; rock 'n' roll; O'Brien; l'été; '90s",
    "Ünïcode, naïve café – a dash — and another… «quoted» “text” ‘here’",
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
WORDS = sorted({w for line in LINES for w in _moses.split(line)})[::2]
VOCAB = SymbolVocabulary(["<eos>", "<unk>", *(w for w in WORDS if w not in _moses.SPECIAL)], "moses-words",
                         line_end="<eos>", unknown="<unk>")  # fmt: skip


@functools.cache
def theirs(lower_case: bool = False) -> Any:
    """transformers' own tokenizer with the words of VOCAB."""
    from tests.huggingface_models import transformers

    import tempfile

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
    assert VOCAB.encode(line.encode(), ends=False).tolist() == [
        min(i, VOCAB.size) if i < VOCAB.size else 1 for i in theirs().encode(line)
    ]
    assert _moses.join(_moses.split(line)) == theirs().convert_tokens_to_string(_moses.split(line))


def test_random_lines_are_split_and_joined_as_by_hugging_faces_tokenizer():
    rng = random.Random(0)
    pieces = "a B é 1 , . - ' \" 's n't -- ... $ ( ) <unk> & @ / 日 – ’ “ \u00a0 5,000 1.5 co-op Mr. : ; ! ? %".split(" ")
    for _ in range(300):
        line = "".join(rng.choice(pieces) + rng.choice(("", " ")) for _ in range(rng.randrange(1, 14)))
        found = _moses.split(line)
        assert found == theirs().tokenize(line), line
        assert _moses.join(found) == theirs().convert_tokens_to_string(found), line
