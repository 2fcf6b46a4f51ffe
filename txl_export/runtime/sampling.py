"""Choosing the next token from a head's answer: temperature, top-k, top-p."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from txl_export.errors import InputError


class Sampler:
    """Draws tokens; the same seed and answers give the same tokens."""

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> None:
        """Check the numbers; raises InputError."""
        if not _is_number(temperature) or not 0 <= temperature < float("inf"):
            raise InputError(f"temperature is {temperature!r}, expected 0 (the most probable token) or more")
        if top_k is not None and not (_is_int(top_k) and top_k >= 1):
            raise InputError(f"top_k is {top_k!r}, expected 1 or more tokens")
        if top_p is not None and not (_is_number(top_p) and 0 < top_p <= 1):
            raise InputError(f"top_p is {top_p!r}, expected a probability above 0 and up to 1")
        if seed is not None and not (_is_int(seed) and seed >= 0):
            raise InputError(f"seed is {seed!r}, expected an integer of 0 or more")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._random = np.random.default_rng(seed)

    def __call__(self, answer: np.ndarray | tuple[np.ndarray, np.ndarray]) -> int:
        """A token id.

        Args:
            answer: of head log_probs or logits, [1, n, V], or of head top_k; the last position is used.
        """
        if isinstance(answer, tuple):
            scores, ids = answer[0][0, -1], answer[1][0, -1]
        else:
            scores, ids = answer[0, -1], None
        place = self._choose(scores.astype(np.float64))
        return int(place if ids is None else ids[place])

    def _choose(self, scores: np.ndarray) -> int:
        if self.temperature == 0:
            return int(scores.argmax())
        order = np.argsort(-scores, kind="stable")
        if self.top_k is not None:
            order = order[: self.top_k]
        with np.errstate(over="ignore"):  # a tiny temperature makes all but the best infinitely improbable
            p = np.exp((scores[order] - scores[order[0]]) / self.temperature)
        p /= p.sum()
        if self.top_p is not None:
            kept = int(np.searchsorted(np.cumsum(p), self.top_p)) + 1
            order, p = order[:kept], p[:kept] / p[:kept].sum()
        return int(self._random.choice(order, p=p))


def stop_sequences(stop: Iterable[int | Sequence[int]]) -> list[tuple[int, ...]]:
    """Tokens and sequences of tokens as tuples; raises InputError for anything else and for empty ones."""
    try:
        sequences = [(s,) if _is_int(s) else tuple(s) for s in stop]  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"stop is {stop!r}, expected tokens or sequences of tokens") from None
    if not all(s and all(map(_is_int, s)) for s in sequences):
        raise InputError(f"stop is {stop!r}, expected tokens or sequences of one or more tokens")
    return [tuple(int(t) for t in s) for s in sequences]  # type: ignore[arg-type]


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float | np.floating)
