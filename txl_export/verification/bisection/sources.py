"""Which tensors of the checkpoint a constant of the graph was made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from txl_export.verification.bisection.judge import Judge

TABLE = "position table R · W_kR"


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint, as the traced module uses it (scaled, for instance)."""

    name: str
    array: np.ndarray

    @property
    def is_table(self) -> bool:
        """Whether it is a table of positions."""
        return self.name.endswith(TABLE)


def find(judge: Judge, part: str, constant: np.ndarray, at: tuple[int, ...]) -> Source | None:
    """The tensor that a number of a constant comes from.

    Args:
        judge: whose tensors are looked through.
        part: the part of the graph that uses the constant.
        constant: as the judge's graph has it.
        at: index of the number.
    """
    if constant.dtype.kind != "f" or not constant.size:
        return None
    return next((s for s in _sources(judge, part) if _covers(constant, s.array, at)), None)


def _sources(judge: Judge, part: str) -> Iterator[Source]:
    """The tensors of a part, those that stand for themselves before those that are made of others."""
    kind, _, number = part.partition(".")
    if kind == "layers":
        yield from _of_layer(judge, int(number))
        return
    wanted = ("embedding",) if kind == "opening" else ("softmax", "embedding")
    for name, parameter in judge.single.model.named_parameters():
        if name.startswith(wanted):
            yield Source(name, parameter.numpy())


def _of_layer(judge: Judge, n: int) -> Iterator[Source]:
    prefix = f"layers.{n}."
    reference = {k: p.numpy() for k, p in judge.single.model.stack[n].named_parameters()}
    for name, array in judge.module.layers[n].named_buffers():
        last = name.removesuffix(".weight").rpartition(".")[2]
        if last == "table":
            yield Source(f"{prefix}attention {TABLE}", array.numpy())
        elif last in ("u", "v"):
            yield Source(last if f"attention.{last}" not in reference else f"{prefix}attention.{last}", array.numpy())
        elif last == "W_q":
            yield Source(f"{prefix}attention.W_q", array.numpy())
    yield from (Source(prefix + name, array) for name, array in reference.items())


def _covers(constant: np.ndarray, source: np.ndarray, at: tuple[int, ...]) -> bool:
    """Whether the constant holds the tensor, or a slice of it, where the number is."""
    if constant.size == source.size:
        return any(np.array_equal(constant.ravel(), s.ravel()) for s in _forms(source))
    if constant.ndim == source.ndim == 3:  # a table is cut to the distances of a fixed segment
        return constant.shape[:2] == source.shape[:2] and np.array_equal(
            constant, source[..., source.shape[-1] - constant.shape[-1] :]
        )
    if constant.ndim != source.ndim or constant.ndim > 2:
        return False
    return any(_inside(constant, s, at) or _inside(constant.T, s, at[::-1]) for s in _forms(source))


def _forms(source: np.ndarray) -> list[np.ndarray]:
    return [source, source.T] if source.ndim == 2 else [source]


def _inside(constant: np.ndarray, source: np.ndarray, at: tuple[int, ...]) -> bool:
    """Row `at` of the constant lies in a block of rows that is the tensor's, or the tensor holds that row."""
    if constant.shape[1:] != source.shape[1:]:
        return False
    row = constant[at[0]]
    rows = np.flatnonzero((source == row).reshape(len(source), -1).all(1))
    return any(_block(constant, source, at[0] - int(r)) for r in rows)


def _block(constant: np.ndarray, source: np.ndarray, offset: int) -> bool:
    """Whether source row 0 stands at row `offset` of the constant, over all rows that both have."""
    start, end = max(0, offset), min(len(constant), offset + len(source))
    return end > start and np.array_equal(constant[start:end], source[start - offset : end - offset])
