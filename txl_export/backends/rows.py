"""Where the rows of a memory written in place are: a host's array here, a GPU's memory in `backends.device`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

Places = slice | Sequence[int] | np.ndarray
ALL = slice(None)


class RowStore(ABC):
    """Rows of B streams, [tensors, B, H, rows, d_head], of which single streams are read and written.

    Attributes:
        shape: as above.
        dtype: of the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @abstractmethod
    def read(self, stream: int, places: Places = ALL, tensors: slice = ALL) -> np.ndarray:
        """Rows of a stream, [tensors, H, n, d_head]; a copy.

        Args:
            stream: its number.
            places: row numbers, or a range of them.
            tensors: of which tensors.
        """

    @abstractmethod
    def write(self, stream: int, places: Places, rows: np.ndarray) -> None:
        """Put rows of all tensors of a stream.

        Args:
            stream: its number.
            places: row numbers, or a range of them.
            rows: [tensors, H, n, d_head], or what broadcasts to it.
        """

    @abstractmethod
    def gather(self, other: RowStore, index: np.ndarray) -> None:
        """Copy all rows of stream index[b] of a store of this kind and shape, or of this one, to stream b.

        Args:
            other: what is copied from.
            index: int64 [B].
        """

    @abstractmethod
    def keep(self, stream: int, first: int, n: int) -> object:
        """Copy rows [first, first + n) of a stream to where `put_back` takes them from."""

    def release(self) -> None:  # noqa: B027 - on the host nothing is held
        """What `keep` gave is not needed any more."""

    @abstractmethod
    def put_back(self, stream: int, first: int, kept: object) -> None:
        """Write what `keep` gave."""


class HostRows(RowStore):
    """Rows in one numpy array."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        """All zeros."""
        self.shape, self.dtype = shape, dtype
        self.array = np.zeros(shape, dtype)

    def read(self, stream: int, places: Places = ALL, tensors: slice = ALL) -> np.ndarray:
        """See `RowStore.read`."""
        found: np.ndarray = self.array[tensors, stream][:, :, places]
        return found.copy() if found.base is not None else found

    def write(self, stream: int, places: Places, rows: np.ndarray) -> None:
        """See `RowStore.write`."""
        self.array[:, stream][:, :, places] = rows

    def gather(self, other: RowStore, index: np.ndarray) -> None:
        """See `RowStore.gather`."""
        assert isinstance(other, HostRows)
        for mine, theirs in zip(self.array, other.array, strict=True):
            mine[...] = theirs[index]

    def keep(self, stream: int, first: int, n: int) -> object:
        """See `RowStore.keep`."""
        return self.read(stream, slice(first, first + n))

    def put_back(self, stream: int, first: int, kept: object) -> None:
        """See `RowStore.put_back`."""
        assert isinstance(kept, np.ndarray)
        self.write(stream, slice(first, first + kept.shape[2]), kept)
