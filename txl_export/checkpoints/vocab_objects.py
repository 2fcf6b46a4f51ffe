"""Vocabularies that checkpoints hold as pickled objects, as plain data."""

from __future__ import annotations

from typing import Any

from txl_export.checkpoints.pickles import Plain
from txl_export.vocabulary import Vocabulary

# Options of upstream's `Vocab` that decide how text becomes tokens.
OPTIONS = ("special", "lower_case", "delimiter", "min_freq", "max_size", "vocab_file")


def vocab_data(value: Any) -> dict[str, Any] | None:
    """The words and options of a pickled `Vocab`; None for anything else.

    Returns:
        {"symbols": words by id, "counts": how often each was seen, or an empty dict, and the options of `OPTIONS`
        that the object holds}.
    """
    if not isinstance(value, Plain) or not value.name.endswith("vocabulary.Vocab"):
        return None
    symbols, counts = value.get("idx2sym"), value.get("counter")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(s, str) for s in symbols):
        return None
    options = {name: value.get(name) for name in OPTIONS if name in (value.state or {})}
    return {"symbols": symbols, "counts": counts if isinstance(counts, dict) else {}, **options}


def vocabulary_of(_data: dict[str, Any] | None) -> Vocabulary | None:
    """The vocabulary of plain data; None for kinds that this version does not read."""
    return None
