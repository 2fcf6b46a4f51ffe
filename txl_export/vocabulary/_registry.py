"""Which vocabularies there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txl_export.errors import CheckpointError
from txl_export.vocabulary._base import Vocabulary
from txl_export.vocabulary._bytes import ByteVocabulary
from txl_export.vocabulary._symbols import SymbolVocabulary
from txl_export.vocabulary._units import UNITS

Loader = Callable[[Mapping[str, Any], Path], Vocabulary]

# One line per kind of vocabulary, and one per way to take text apart.
_KINDS: dict[str, Loader] = {"bytes": lambda *_: ByteVocabulary(), **dict.fromkeys(UNITS, SymbolVocabulary.load)}


def load_vocabulary(value: Mapping[str, Any] | None, folder: Path) -> Vocabulary | None:
    """The vocabulary that a config or manifest describes; None where it describes none.

    Args:
        value: what `to_dict` gave.
        folder: where its files are.

    Raises:
        CheckpointError: for an unknown kind, or a file that is missing or not the one that was saved.
    """
    if value is None:
        return None
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(f"vocabulary kind {kind!r} is unknown: known are {', '.join(_KINDS)}")
    return _KINDS[kind](value, folder)
