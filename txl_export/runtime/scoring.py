"""How probable a model finds a text, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from txl_export.errors import InputError
from txl_export.runtime.session import Session

SCORING_HEADS = ("target", "log_probs")  # that give a token's log-probability, the cheaper one first


def token_log_probs(
    session: Session,
    ids: Sequence[int] | np.ndarray,
    segment_len: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Log-probability of every token but the first, given all before it and what the session remembers.

    Args:
        session: of one stream.
        ids: tokens, two or more.
        segment_len: tokens per segment; None for the session's default.
        progress: called with the number of tokens done after each segment.

    Returns:
        float32 [n - 1], nats.

    Raises:
        InputError: fewer than two tokens, or a bundle without a head that scores tokens.
    """
    tokens = session.text(ids)
    head = next((h for h in SCORING_HEADS if h in session.info.heads), None)
    if head is None:
        raise InputError(
            f"scoring needs head target or log_probs, this bundle has {', '.join(session.info.heads)}: "
            "export with --head target"
        )
    cut = session.info.segment_len if segment_len is None else segment_len
    if not isinstance(cut, int | np.integer) or cut < 1:
        raise InputError(f"segment_len is {cut!r}, expected 1 or more tokens")
    result = np.empty(tokens.size - 1, np.float32)
    for start in range(0, tokens.size - 1, cut):
        end = min(start + cut, tokens.size - 1)
        x, y = tokens[None, start:end], tokens[None, start + 1 : end + 1]
        if head == "target":
            result[start:end] = session.feed(x, cut, head, targets=y)[0]
        else:
            result[start:end] = np.take_along_axis(session.feed(x, cut, head)[0], y[0][:, None], 1)[:, 0]
        if progress:
            progress(end)
    return result
