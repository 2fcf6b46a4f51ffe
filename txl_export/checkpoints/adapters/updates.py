"""The arithmetic: W + scale * up @ down, and rescaled rows or columns, in float64 and rounded once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 20  # numbers that are float64 at a time: tables of large vocabularies would not fit twice


@dataclass(frozen=True)
class Update:
    """What an adapter does to one matrix W [rows, columns].

    Attributes:
        up: [rows, r]; a linear module's lora_B, an embedding's lora_embedding_A transposed.
        down: [r, columns]; lora_A, or lora_embedding_B transposed.
        scale: of their product.
        magnitude: with DoRA the lengths that rows (of linear modules) or columns (of embeddings) get.
        of_columns: whether these are lengths of columns.
        bias: what is added to the module's bias, [rows], unscaled; None for nothing.
    """

    up: np.ndarray
    down: np.ndarray
    scale: float
    magnitude: np.ndarray | None = None
    of_columns: bool = False
    bias: np.ndarray | None = None

    def of_rows(self, rows: slice) -> Update:
        """The same for some of the rows, of a module that holds several matrices one below the other."""
        magnitude = self.magnitude if self.magnitude is None or self.of_columns else self.magnitude[rows]
        bias = None if self.bias is None else self.bias[rows]
        return dataclasses.replace(self, up=self.up[rows], magnitude=magnitude, bias=bias)


def merged_matrix(weight: np.ndarray, update: Update) -> np.ndarray:
    """W as it is with the update, float32.

    Sums are taken in float64 and rounded to float32 once. So the result is the float32 number nearest to the exact
    one, whatever the order in which a machine adds, and half an ulp per weight is all that merging costs: less than
    the rounding of any product that W enters.
    """
    out = np.empty(weight.shape, dtype=np.float32)
    factors = _column_factors(weight, update) if update.of_columns and update.magnitude is not None else None
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # whoever asks looks for Inf and NaN
        for rows in _blocks(weight):
            block = _sum(weight, update, rows)
            if factors is not None:
                block *= factors
            elif update.magnitude is not None:
                block *= (update.magnitude[rows] / np.linalg.norm(block, axis=1))[:, None]
            out[rows] = block
    return out


def _column_factors(weight: np.ndarray, update: Update) -> np.ndarray:
    assert update.magnitude is not None
    squares = sum((_sum(weight, update, rows) ** 2).sum(axis=0) for rows in _blocks(weight))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(update.magnitude / np.sqrt(squares))


def _sum(weight: np.ndarray, update: Update, rows: slice) -> np.ndarray:
    product = update.up[rows].astype(np.float64) @ update.down.astype(np.float64)
    total: np.ndarray = weight[rows] + update.scale * product
    return total


def _blocks(weight: np.ndarray) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, weight.shape[1]))
    return (slice(start, start + step) for start in range(0, weight.shape[0], step))
