"""Text as Hugging Face's Transformer-XL tokenizer takes it apart and puts it together, line by line.

Punctuation is set apart by Moses's rules for English; hyphens inside words, and commas and points inside numbers,
become words of their own: "1,234-fold" is 1 @,@ 234 @-@ fold. Source: transformers 4.35.2,
`tokenization_transfo_xl.py`, which leaves Moses's rules to sacremoses, as this does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from txl_export.errors import InputError, missing_extra

# Words that are found before the rules may take them apart, whatever the text around them.
SPECIAL = ("<eos>", "<unk>", "<formula>")
# Words that stand for a sign inside another word; what they join follows.
JOINERS = ("@-@", "@,@", "@.@")
PRETOKENIZED = "text whose words are set apart by blanks already, such as WikiText, needs --pretokenized"
_AT_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_INSIDE_NUMBERS = re.compile(r"(?<=\d)[,.](?=\d)")


def split(line: str) -> list[str]:
    """The words of a line.

    Raises:
        EnvironmentMismatch: sacremoses is not installed.
        InputError: more protected words in one line than the rules can keep apart.
    """
    parts = enumerate(_AT_SPECIAL.split(line))  # every second is a special word
    return [word for i, part in parts for word in ([part] if i % 2 else _split_plain(part.strip()))]


def _split_plain(text: str) -> list[str]:
    try:
        normalizer, tokenizer, _ = _rules()
    except ImportError:
        raise missing_extra("sacremoses", "words", f"reading raw text as Hugging Face does ({PRETOKENIZED})") from None
    try:
        words = tokenizer.tokenize(
            normalizer.normalize(text),
            aggressive_dash_splits=True,
            return_str=False,
            escape=False,
            protected_patterns=SPECIAL,
        )
    except ValueError as e:  # its placeholders have three digits
        raise InputError(f"a line of the text is more than Moses's rules can take ({e}): break it up") from None
    return [part for word in words for part in _INSIDE_NUMBERS.sub(r" @\g<0>@ ", word).split()]


def join(words: Sequence[str]) -> str:
    """The text of a line's words; without sacremoses, the words with blanks between them."""
    try:
        _, _, detokenizer = _rules()
    except ImportError:
        return " ".join(words)
    text: str = detokenizer.detokenize(words)
    return text.replace(" @,@ ", ",").replace(" @.@ ", ".").strip()


@functools.cache
def _rules() -> tuple[Any, Any, Any]:
    """Normalizer, tokenizer and detokenizer; ImportError without sacremoses."""
    import sacremoses as moses

    return moses.MosesPunctNormalizer("en"), moses.MosesTokenizer("en"), moses.MosesDetokenizer("en")
