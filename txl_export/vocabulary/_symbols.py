"""Vocabularies that are a list of symbols: words, characters, and what two benchmarks made of bytes."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.errors import CheckpointError, InputError
from txl_export.files import first_line, inside
from txl_export.vocabulary._base import Vocabulary
from txl_export.vocabulary._moses import JOINERS
from txl_export.vocabulary._units import MOSES, UNITS

FILE = "vocabulary.json"
_MOST_BEFORE = 1000  # symbols of a line that the text of the next may depend on


class SymbolVocabulary:
    """Token i is symbol i; the rules say how text becomes symbols."""

    def __init__(
        self,
        symbols: Sequence[str],
        kind: str = "words",
        lower_case: bool = False,
        delimiter: str | None = None,
        line_start: str | None = None,
        line_end: str | None = None,
        unknown: str | None = None,
    ) -> None:
        """Take symbols and rules.

        Args:
            symbols: one per token, in the order of their ids; all different.
            kind: one of `UNITS`.
            lower_case: text is lowered first.
            delimiter: what separates words; None for blanks.
            line_start: symbol put before each line, if any.
            line_end: symbol put after each line, if any.
            unknown: symbol for words that are not there; None to refuse them.

        Raises:
            CheckpointError: symbols that repeat or are no text, rules that name a missing symbol.
        """
        self.kind, self.symbols = kind, tuple(symbols)
        self.lower_case, self.delimiter = lower_case, delimiter
        self.line_start, self.line_end, self.unknown = line_start, line_end, unknown
        self._check()
        self._ids = {s: i for i, s in enumerate(self.symbols)}
        if len(self._ids) != len(self.symbols):
            seen: set[str] = set()
            twice = next(s for s in self.symbols if s in seen or seen.add(s))  # type: ignore[func-returns-value]
            raise CheckpointError(f"the vocabulary holds {_shown(twice)} twice, expected different symbols")
        for rule in ("line_start", "line_end", "unknown"):
            if (named := getattr(self, rule)) is not None and named not in self._ids:
                raise CheckpointError(f"the vocabulary lacks {_shown(named)}, which its {rule} names")
        self._unit = UNITS[kind]

    def _check(self) -> None:
        if self.kind not in UNITS or not isinstance(self.lower_case, bool) or not self.symbols:
            raise CheckpointError(f"a vocabulary of kind {self.kind!r} with {len(self.symbols)} symbols cannot be read")
        texts = [x for x in (self.delimiter, self.line_start, self.line_end, self.unknown) if x is not None]
        if not all(isinstance(s, str) for s in (*texts, *self.symbols)):
            raise CheckpointError("the vocabulary holds symbols or rules that are no text")
        if self.delimiter == "" and self.kind == "words":
            raise CheckpointError("the vocabulary's delimiter is empty: words cannot be told apart")

    @property
    def size(self) -> int:
        """How many symbols there are."""
        return len(self.symbols)

    @property
    def unknown_id(self) -> int | None:
        """Token that stands for unknown words, if any."""
        return None if self.unknown is None else self._ids[self.unknown]

    def encode(self, data: bytes, starts: bool = True, ends: bool = True) -> np.ndarray:
        """Ids of a text, int64 [n]; see `Vocabulary.encode`.

        Raises:
            InputError: naming the first word that is unknown where nothing stands for those, or bytes that are
                not of the vocabulary's coding.
        """
        symbols = (symbol for line in self._lines(data, starts, ends) for symbol in line)
        unknown = self.unknown_id
        if unknown is not None:
            found = (self._ids.get(symbol, unknown) for symbol in symbols)
            return np.fromiter(found, dtype=np.int64)
        try:
            return np.fromiter((self._ids[symbol] for symbol in symbols), dtype=np.int64)
        except KeyError as e:
            raise InputError(
                f"the vocabulary has no {_shown(e.args[0])} and no symbol for what is unknown, such as <unk>: leave it "
                "out, or give token ids"
            ) from None

    def _lines(self, data: bytes, starts: bool, ends: bool) -> Iterator[list[str]]:
        """Symbols of each line, with those for its start and end."""
        reader = io.TextIOWrapper(io.BytesIO(data), encoding=self._unit.coding, newline=self._unit.newline)
        try:
            for line in reader:
                whole = line.endswith(("\n", "\r"))
                first = [self.line_start] * (self.line_start is not None and starts)
                last = [self.line_end] * (self.line_end is not None and (whole or ends))
                body = line if self._unit.keeps_breaks else line.rstrip("\n")
                yield [*first, *self._split(body), *last]  # type: ignore[list-item]
                starts = True
        except UnicodeDecodeError as e:
            raise InputError(
                f"the text is not {self._unit.coding} (byte {data[e.start : e.start + 1].hex()}): convert it first"
            ) from None

    def _split(self, line: str) -> Sequence[str]:
        if self.lower_case and self._unit.has_case:
            line = line.lower()
        return self._unit.split(line, self.delimiter)

    def decode(self, ids: Iterable[int], after: int | Sequence[int] | None = None) -> bytes:
        """The text of ids; see `Vocabulary.decode`. A token without a symbol is written as its number in <>."""
        symbols = [self._symbol(token) for token in ids]
        tokens = () if after is None else (after,) if isinstance(after, int) else after
        text = self._of_lines(symbols, tokens) if self._unit.join else self._of_each(symbols, tokens)
        return text.encode(self._unit.coding, errors="replace")

    def _of_each(self, symbols: Iterable[str], after: Sequence[int]) -> str:
        """Text where each symbol has its own, but for the blank before it."""
        before = self._symbol(after[-1]) if len(after) else None
        parts = []
        for symbol in symbols:
            parts.append(self._text(symbol, before))
            before = symbol
        return "".join(parts)

    def _of_lines(self, symbols: Iterable[str], after: Sequence[int]) -> str:
        """Text where a symbol's depends on those before it in its line."""
        before, line, parts = self._end_of_line(after), [], []  # type: list[str], list[str], list[str]
        for symbol in symbols:
            if symbol not in (self.line_start, self.line_end):
                line.append(symbol)
                continue
            opens = not before and not line and symbol == self.line_start
            parts.append(self._rest(before, line, ends=True) + "\n" * (not opens and symbol == self.line_end))
            before, line = [], []
        return "".join([*parts, self._rest(before, line, ends=False)])

    def _end_of_line(self, tokens: Sequence[int]) -> list[str]:
        """Symbols since the last line's end, as far as they may matter."""
        found: list[str] = []
        for token in reversed(tokens[-_MOST_BEFORE:]):
            symbol = self._symbol(token)
            if symbol in (self.line_start, self.line_end):
                break
            found.append(symbol)
        return found[::-1]

    def _rest(self, before: list[str], line: list[str], ends: bool) -> str:
        """What a line's text gains by more symbols. The text of a sign that joins waits for what it joins."""
        join = self._unit.join
        assert join is not None
        shown, whole = join(_settled(before)), join([*before, *line] if ends else _settled([*before, *line]))
        same = (i for i, (a, b) in enumerate(zip(shown, whole, strict=False)) if a != b)
        return whole[next(same, len(shown)) :]

    def _symbol(self, token: int) -> str:
        return self.symbols[token] if 0 <= token < len(self.symbols) else f"<{token}>"

    def _text(self, symbol: str, before: str | None) -> str:
        marks = (None, self.line_start, self.line_end)
        if symbol == self.line_end:
            opens = self.line_start == self.line_end and before in marks
            return "" if opens else "\n"
        if symbol == self.line_start:
            return ""
        glue = "" if before in marks else (self.delimiter or self._unit.glue)
        return glue + self._unit.text(symbol)

    @functools.cached_property
    def _content(self) -> bytes:
        return ("[\n" + ",\n".join(json.dumps(s) for s in self.symbols) + "\n]\n").encode()

    def to_dict(self) -> dict[str, Any]:
        """Rules, and which file holds the symbols."""
        rules = ("lower_case", "delimiter", "line_start", "line_end", "unknown")
        digest = hashlib.sha256(self._content).hexdigest()
        return {"kind": self.kind, "size": self.size, "file": FILE, "sha256": digest} | {
            name: getattr(self, name) for name in rules
        }

    def files(self) -> dict[str, bytes]:
        """The symbols: a JSON list, one a line, so that every character survives."""
        return {FILE: self._content}

    @classmethod
    def load(cls, value: Mapping[str, Any], folder: Path) -> SymbolVocabulary:
        """Make one of what `to_dict` gave and the file beside it; raises CheckpointError."""
        rules = {k: v for k, v in value.items() if k not in ("size", "file", "sha256")}
        path = inside(folder, value.get("file"), CheckpointError)
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != value.get("sha256"):
                raise CheckpointError(
                    f"{path} is not the vocabulary that was saved (its SHA-256 differs): save it again"
                )
            symbols = json.loads(content)
            if not isinstance(symbols, list) or len(symbols) != value.get("size"):
                raise CheckpointError(f"{path} holds no list of {value.get('size')} symbols: save it again")
            return cls(symbols, **rules)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: it holds the vocabulary") from None
        except (OSError, ValueError, RecursionError, TypeError) as e:
            raise CheckpointError(f"{path} is no readable vocabulary ({first_line(e)})") from None


def splitting_at_blanks(vocab: Vocabulary | None) -> Vocabulary | None:
    """The vocabulary for text whose words are set apart by blanks already, as what it was trained on was."""
    if not isinstance(vocab, SymbolVocabulary) or vocab.kind != MOSES:
        return vocab
    rules = {name: getattr(vocab, name) for name in ("lower_case", "delimiter", "line_start", "line_end", "unknown")}
    return SymbolVocabulary(vocab.symbols, "words", **rules)


def _settled(line: list[str]) -> list[str]:
    """A line without the joining signs at its end."""
    end = len(line)
    while end and line[end - 1] in JOINERS:
        end -= 1
    return line[:end]


def _shown(symbol: object, most: int = 40) -> str:
    """A symbol in a message: in quotes, escaped, cut."""
    text = ascii(symbol) if isinstance(symbol, str) else type(symbol).__name__
    return text if len(text) <= most else text[:most] + "..."
