"""What stands for the objects of a pickle: a class's name and its attributes, a storage, a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from txl_export.errors import CheckpointError

# Tensors of a model have up to two dimensions, of an optimizer or a memory up to four.
MOST_DIMS = 8
_MOST_NUMBERS = 2**40


@dataclass(eq=False)
class Plain:
    """An object of which only the class's name and the data are kept.

    Attributes:
        name: module and class, such as "mem_transformer.MemTransformerLM".
        args: what it was made of.
        state: its attributes by name; None where the file gives none.
    """

    name: str
    args: tuple[Any, ...] = ()
    state: dict[str, Any] | None = field(default=None, repr=False)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return (self.state or {}).get(name, default)


@dataclass(frozen=True)
class Storage:
    """Numbers somewhere in the file.

    Attributes:
        key: its name in the file.
        dtype: numpy's code of one number, or "bfloat16".
        numel: how many numbers.
    """

    key: str
    dtype: str
    numel: int

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return self.numel * self.itemsize


@dataclass(frozen=True)
class Tensor:
    """A view of a storage; two that are equal are one tensor under two names.

    Attributes:
        storage: where its numbers are.
        offset: first of them, counted in numbers.
        shape: its size in each dimension.
        strides: steps in each dimension, counted in numbers.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a view that leaves its storage or holds more numbers than it; raises CheckpointError."""
        numbers = (self.offset, *self.shape, *self.strides)
        if any(type(n) is not int or n < 0 for n in numbers):
            raise CheckpointError("a tensor's offset, size and strides are no numbers of 0 or more")
        if len(self.shape) != len(self.strides) or len(self.shape) > MOST_DIMS:
            raise CheckpointError(f"a tensor has {len(self.shape)} dimensions and {len(self.strides)} strides")
        if math.prod(n for n in self.shape if n) > _MOST_NUMBERS:  # of an empty one too: numpy multiplies all sizes
            raise CheckpointError("a tensor's sizes are beyond any model's")
        count = self.numel
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if count > self.storage.numel or (count and last >= self.storage.numel):
            raise CheckpointError(f"a tensor of {list(self.shape)} lies outside of its {self.storage.numel} numbers")

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)
