"""What a token stands for in a text, one entry per way in which the public models' data was prepared.

Sources: kimiyoung/transformer-xl `pytorch/utils/vocabulary.py` and its `prep_text8.py`, and the preparation of
enwik8 that `getdata.sh` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txl_export.vocabulary import _moses

MOSES = "moses-words"


@dataclass(frozen=True)
class Unit:
    """How a line is taken apart and put together again.

    Attributes:
        split: a line without its end, and the delimiter of words, to symbols.
        text: a symbol to its text.
        glue: what stands between two symbols.
        coding: of the text's bytes.
        newline: what ends a line, as `open` takes it: None for all usual ends.
        has_case: whether lower case means anything to it.
        keeps_breaks: whether a line comes with its end.
        join: all symbols of a line to its text, where one depends on those before it; None where `text` will do.
    """

    split: Callable[[str, str | None], Sequence[str]]
    text: Callable[[str], str]
    glue: str
    coding: str = "utf-8"
    newline: str | None = None
    has_case: bool = True
    keeps_breaks: bool = False
    join: Callable[[Sequence[str]], str] | None = None


def _as_it_is(symbol: str) -> str:
    return symbol


def _number_text(symbol: str) -> str:
    return chr(int(symbol)) if symbol.isascii() and symbol.isdigit() and int(symbol) < 256 else "?"


UNITS: dict[str, Unit] = {
    # Between blanks, or between delimiters.
    "words": Unit(lambda line, delimiter: line.strip().split(delimiter), _as_it_is, " "),
    # As Hugging Face's tokenizer reads raw text.
    MOSES: Unit(lambda line, _: _moses.split(line), _as_it_is, " ", join=_moses.join),
    # All that a line holds but blanks at its ends.
    "characters": Unit(lambda line, _: line.strip(), _as_it_is, ""),
    # text8: one character a word, a blank written as an underscore.
    "text8": Unit(
        lambda line, _: ["_" if c.isspace() else c for c in line], lambda s: s.replace("_", " "), "", keeps_breaks=True
    ),
    # enwik8: the numbers of bytes as words, line breaks left out.
    "byte-numbers": Unit(
        lambda line, _: [str(ord(c)) for c in line], _number_text, "", "latin-1", newline="\n", has_case=False
    ),
}


def unit_of(symbols: Sequence[str], delimiter: str | None) -> str:
    """Which unit a list of symbols was made with, as its symbols tell."""
    if delimiter == "":
        return "characters"
    if len(symbols) > 1 and all(s.isascii() and s.isdigit() and len(s) < 4 and int(s) < 256 for s in symbols):
        return "byte-numbers"
    if "_" in symbols and all(len(s) == 1 and (s == "_" or s.islower()) for s in symbols):
        return "text8"
    return "words"
