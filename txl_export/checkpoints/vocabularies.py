"""Reading of the vocabularies that the public implementations save: pickled `Vocab` objects, dicts, and text files.

Sources of the rules: kimiyoung/transformer-xl `pytorch/utils/vocabulary.py` and `pytorch/data_utils.py`, NVIDIA's
copies of them, and transformers 4.35.2 `tokenization_transfo_xl.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.pickles import Plain, is_torch_file, open_torch, read_pickle, shown
from txl_export.config import ModelConfig
from txl_export.errors import CheckpointError
from txl_export.files import read_json
from txl_export.vocabulary import ByteVocabulary, SymbolVocabulary, Vocabulary, order_of_counts, unit_of
from txl_export.vocabulary._moses import PRETOKENIZED
from txl_export.vocabulary._units import MOSES

# Files of a Hugging Face folder; the first found wins, as in its tokenizer.
HUGGINGFACE_FILES = ("vocab.pkl", "vocab.bin", "vocab.txt")
# In place of a file: no vocabulary.
NONE = "none"
_MOST_TEXT_BYTES = 1 << 28
# Ends of lines that data was prepared with: "<eos>" after each, or for lm1b "<S>" on both sides.
_LINE_MARKS = (("<eos>", (None, "<eos>")), ("<S>", ("<S>", "<S>")))
_UNKNOWN = ("<unk>", "<UNK>")
TOKENIZER_CONFIG = "tokenizer_config.json"
_AS_THEIRS = f"raw text is split as Hugging Face's tokenizer does (extra 'words'); {PRETOKENIZED}"
_OTHER_LANGUAGE = (
    "the tokenizer's language is {!r}, expected 'en': text is split at blanks, set its punctuation apart first"
)

Notes = tuple[str, ...]


def read_vocabulary(path: Path) -> tuple[SymbolVocabulary, Notes]:
    """The vocabulary of a file, by its content: a pickle, a file of `torch.save`, or text.

    Returns:
        The vocabulary, and what to know of it, a line each.

    Raises:
        CheckpointError: unreadable, damaged, or something else.
    """
    if is_torch_file(path):
        return vocabulary_of(open_torch(path).root, path)
    try:
        with path.open("rb") as f:
            if f.read(1) == b"\x80":
                f.seek(0)
                return vocabulary_of(read_pickle(f, str(path)), path)
        return _from_text(path)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read ({e.strerror}): give a vocabulary file") from None


def vocabulary_of(value: Any, source: Path) -> tuple[SymbolVocabulary, Notes]:
    """The vocabulary in plain data: a `Vocab`, a corpus or checkpoint that has one, or a tokenizer's attributes.

    Args:
        value: what `read_pickle` gave.
        source: what to call the file in messages.

    Returns:
        The vocabulary, and what to know of it, a line each.

    Raises:
        CheckpointError: no vocabulary is in it, or one that contradicts itself.
    """
    state = _attributes(value)
    for _ in range(2):  # a corpus in a checkpoint has it one level deeper
        if not _holds_symbols(state):
            state = _attributes(state.get("vocab"))
    if not _holds_symbols(state):
        found = shown(value.name) if isinstance(value, Plain) else f"a {type(value).__name__}"
        raise CheckpointError(
            f"{source} holds {found}, expected a Vocab with idx2sym or sym2idx (BPE is not supported)"
        )
    symbols = _symbols(state, source)
    unknown = state.get("unk_idx")
    named = symbols[unknown] if type(unknown) is int and 0 <= unknown < len(symbols) else None
    vocab = _made(symbols, named, bool(state.get("lower_case", False)), state.get("delimiter"), source)
    return vocab, _notes(vocab, state.get("counter"), source)


def _attributes(value: Any) -> Mapping[str, Any]:
    found = value.state if isinstance(value, Plain) else value
    return found if isinstance(found, dict) else {}


def _holds_symbols(state: Mapping[str, Any]) -> bool:
    return "sym2idx" in state or "idx2sym" in state


def _symbols(state: Mapping[str, Any], source: Path) -> list[str]:
    """Symbols by id. A tokenizer that was loaded and saved again has lost its list and kept the dict."""
    listed, ids = state.get("idx2sym") or [], state.get("sym2idx") or {}
    if not isinstance(listed, list) or not isinstance(ids, dict) or not (listed or ids):
        raise CheckpointError(f"{source} holds an empty vocabulary, or one that is no list and no dict")
    if not ids:
        return listed
    by_id = {i: s for s, i in ids.items() if type(i) is int}
    if sorted(by_id) != list(range(len(ids))):
        raise CheckpointError(f"{source}: sym2idx does not number its words from 0 on without gaps")
    ordered = [by_id[i] for i in range(len(ids))]
    if listed and ordered != listed:
        raise CheckpointError(f"{source}: sym2idx and idx2sym number words differently")
    return ordered


def _from_text(path: Path) -> tuple[SymbolVocabulary, Notes]:
    """One word a line, with or without a count; a word that comes again is passed over."""
    if path.stat().st_size > _MOST_TEXT_BYTES:
        raise CheckpointError(f"{path} has more than {_MOST_TEXT_BYTES >> 20} MiB, expected a word per line")
    counts: dict[str, Any] = {}
    try:
        with path.open(encoding="utf-8") as f:
            for number, line in enumerate(f, start=1):
                word, *rest = line.split() or (None,)
                if word is None:
                    raise CheckpointError(f"{path} has no word in line {number}: expected one per line")
                counts.setdefault(word, int(rest[0]) if rest and rest[0].isascii() and rest[0].isdigit() else None)
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is neither a pickle nor UTF-8 text with a word per line") from None
    vocab = _made(list(counts), None, False, None, path)
    return vocab, _notes(vocab, counts, path)


def _made(symbols: list[str], unknown: str | None, lower_case: bool, delimiter: Any, source: Path) -> SymbolVocabulary:
    has = set(symbols) if all(isinstance(s, str) for s in symbols) else set()
    start, end = next((marks for name, marks in _LINE_MARKS if name in has), (None, None))
    unknown = unknown or next((name for name in _UNKNOWN if name in has), None)
    try:
        kind = unit_of(symbols, delimiter) if has else "words"
        return SymbolVocabulary(symbols, kind, lower_case, delimiter, start, end, unknown)
    except CheckpointError as e:
        raise CheckpointError(f"{source}: {e}") from None


def _notes(vocab: SymbolVocabulary, counter: Any, source: Path) -> Notes:
    """That words are not in the order of the counts that the file holds."""
    found = counter if isinstance(counter, dict) else {}
    counts = np.array([n if type(n := found.get(s)) is int else -1 for s in vocab.symbols], dtype=np.float64)
    (counted,) = np.nonzero(counts >= 0)
    note = order_of_counts(counted, counts[counted])
    return (f"{source}: {note}",) if note else ()


def with_vocabulary(checkpoint: Checkpoint, file: str | Path) -> Checkpoint:
    """A checkpoint with a file's vocabulary, that of bytes, or none; raises CheckpointError for another model's."""
    if str(file) == NONE:
        return dataclasses.replace(checkpoint, vocab=None)
    if str(file) != ByteVocabulary.kind:
        vocab, notes = _fitted(*read_vocabulary(Path(file)), checkpoint.config, Path(file))
        return dataclasses.replace(checkpoint, vocab=vocab, notes=(*checkpoint.notes, *notes))
    if checkpoint.config.vocab_size != ByteVocabulary.size:
        raise CheckpointError(f"the model has {checkpoint.config.vocab_size:,} tokens, expected 256 for bytes")
    return dataclasses.replace(checkpoint, vocab=ByteVocabulary())


def find_huggingface(folder: Path, config: ModelConfig) -> tuple[Vocabulary | None, Notes]:
    """The vocabulary of a Hugging Face folder, if it holds one, and what to know of it; raises CheckpointError."""
    path = next((folder / name for name in HUGGINGFACE_FILES if (folder / name).is_file()), None)
    if path is None:
        return None, ()
    try:
        vocab, notes = read_vocabulary(path)
        if vocab.kind == "words":
            vocab, said = _as_their_tokenizer(vocab, folder)
            notes += said
        return _fitted(vocab, notes, config, path)
    except CheckpointError as e:
        raise CheckpointError(f"{e}; --vocabulary {NONE} loads the model without it") from None


def _as_their_tokenizer(vocab: SymbolVocabulary, folder: Path) -> tuple[SymbolVocabulary, Notes]:
    """The vocabulary with the rules of Hugging Face's tokenizer, whose options are not those in the pickle."""
    file = folder / TOKENIZER_CONFIG
    options = read_json(file, CheckpointError) if file.is_file() else {}
    options = options if isinstance(options, dict) else {}
    language = options.get("language", "en")
    if language != "en":
        return vocab, (_OTHER_LANGUAGE.format(shown(language)),)
    lower_case = bool(options.get("do_lower_case", options.get("lower_case", False)))
    return as_huggingface(vocab, lower_case), (_AS_THEIRS,)


def as_huggingface(vocab: SymbolVocabulary, lower_case: bool) -> SymbolVocabulary:
    """A vocabulary of words with the rules of Hugging Face's tokenizer."""
    return SymbolVocabulary(vocab.symbols, MOSES, lower_case, None, vocab.line_start, vocab.line_end, vocab.unknown)


def find_pickled(value: Any, config: ModelConfig, source: Path) -> tuple[Vocabulary | None, Notes]:
    """The vocabulary that a checkpoint holds as an object, if it does, and what to know of it.

    One that cannot be used, such as BPE, is left out with a note: the model itself needs none.
    """
    if value is None:
        return None, ()
    try:
        return _fitted(*vocabulary_of(value, source), config, source)
    except CheckpointError as e:
        return None, (f"its vocabulary is left out, text needs --vocabulary FILE, token ids need none: {e}",)


def _fitted(vocab: SymbolVocabulary, notes: Notes, config: ModelConfig, source: Path) -> tuple[Vocabulary, Notes]:
    """A vocabulary for a model, with a note where it has fewer words; raises CheckpointError where it has more."""
    if vocab.size > config.vocab_size:
        raise CheckpointError(
            f"{source} has {vocab.size:,} words, the model {config.vocab_size:,}: it is another model's vocabulary"
        )
    if vocab.size == config.vocab_size:
        return vocab, notes
    fewer = f"{source} has {vocab.size:,} words for the model's {config.vocab_size:,}: the rest have no text"
    return vocab, (*notes, fewer)
