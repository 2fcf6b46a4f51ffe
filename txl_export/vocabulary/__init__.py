"""Vocabularies: text to token ids and back. No torch, nothing from a file is run."""

from txl_export.vocabulary._base import Vocabulary
from txl_export.vocabulary._bytes import ByteVocabulary
from txl_export.vocabulary._registry import load_vocabulary
from txl_export.vocabulary._symbols import SymbolVocabulary, splitting_at_blanks
from txl_export.vocabulary._text import order_note, order_of_counts, reading_notes, unknown_note
from txl_export.vocabulary._units import unit_of

__all__ = [
    "ByteVocabulary",
    "SymbolVocabulary",
    "Vocabulary",
    "load_vocabulary",
    "order_note",
    "order_of_counts",
    "reading_notes",
    "splitting_at_blanks",
    "unit_of",
    "unknown_note",
]
