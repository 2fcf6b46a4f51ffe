"""What verbs read: texts and token ids; anything unreadable or empty is one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from txl_export.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from txl_export.vocabulary import Vocabulary

STDIN = Path("-")


def read_text(path: Path) -> bytes:
    """All bytes of a file, or of standard input for "-"; raises InputError when unreadable or empty."""
    if path == STDIN:
        data = sys.stdin.buffer.read()
    else:
        try:
            data = path.read_bytes()
        except OSError as e:
            raise InputError(f"{path} cannot be read ({e.strerror}): give a text file, or - for stdin") from None
    if not data:
        name = "standard input" if path == STDIN else str(path)
        raise InputError(f"{name} is empty: give a text with at least one token")
    return data


def read_ids(path: Path, max_rank: int = 1) -> np.ndarray:
    """Token ids of a .npy file, [n] or, with `max_rank` 2, [B, n]; raises InputError for anything else."""
    import numpy as np

    try:
        ids = np.load(path, allow_pickle=False)
    except Exception as e:  # damaged files end in errors of zipfile, tokenize, memory and more
        reason = getattr(e, "strerror", None) or "not an array saved by numpy.save"
        raise InputError(f"{path} cannot be read ({reason}): give token ids as a .npy file") from None
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or not 1 <= ids.ndim <= max_rank:
        found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else "several arrays"
        shapes = "[n]" if max_rank == 1 else "[n] or [B, n]"
        raise InputError(f"{path} holds {found}, expected integers {shapes}")
    if not ids.size:
        raise InputError(f"{path} is empty: give at least one token")
    return ids


def encode(vocab: Vocabulary | None, data: bytes, instead: str, starts: bool = True, ends: bool = True) -> np.ndarray:
    """Token ids of a text.

    Args:
        vocab: the model's, where it has one.
        data: the text.
        instead: the option that takes ids in place of text.
        starts: the text begins a line.
        ends: the text ends its last line; what goes on does not.

    Raises:
        InputError: a model without a vocabulary, or a text of no tokens.
    """
    if vocab is None:
        raise InputError(f"this model comes without a vocabulary: give token ids with {instead}")
    ids = vocab.encode(data, starts, ends)
    if not ids.size:
        raise InputError(f"the text gives no tokens of this vocabulary ({vocab.kind}): give at least one")
    return ids
