"""A file of `torch.save`: its pickle as plain data, its tensors read when they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from txl_export.checkpoints.pickles._containers import CONTAINERS, Container
from txl_export.checkpoints.pickles._plain import Tensor
from txl_export.checkpoints.pickles._text import shown
from txl_export.checkpoints.tensors import to_float32, widen_bfloat16
from txl_export.errors import CheckpointError

_opened: ContextVar[dict[Path, TorchFile] | None] = ContextVar("opened", default=None)


class TorchFile:
    """An opened file.

    Attributes:
        path: where it is.
        kind: which container it is.
        root: what was saved, as plain data.
    """

    def __init__(self, path: Path, container: Container) -> None:
        """Take a container whose pickle has been read."""
        self.path, self.kind, self.root = path, container.kind, container.root
        self._container = container
        self._numbers: dict[str, np.ndarray] = {}
        self._arrays: dict[Tensor, np.ndarray] = {}
        self._size = path.stat().st_size
        self._left = 4 * self._size + (1 << 16)

    def read(self, tensor: Tensor, name: str) -> np.ndarray:
        """The numbers of a tensor: floating point of any width as float32, others as they are.

        Tensors that are equal give the same array.

        Args:
            tensor: one of this file's.
            name: what to call it in messages.

        Raises:
            CheckpointError: the file is damaged, or its tensors share so much that they outgrow it.
        """
        if tensor not in self._arrays:
            self._arrays[tensor] = self._read(tensor, name)
        return self._arrays[tensor]

    def _read(self, tensor: Tensor, name: str) -> np.ndarray:
        self._left -= 4 * tensor.numel
        if self._left < 0:
            raise CheckpointError(
                f"{self.path} has tensors of over {4 * self._size:,} bytes in {self._size:,}: give another file"
            )
        flat = self._flat(tensor)
        # The step of a dimension of one may be any number, even one that numpy cannot hold.
        steps = tuple(step * flat.itemsize * (n > 1) for n, step in zip(tensor.shape, tensor.strides, strict=True))
        array = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps)
        wide = widen_bfloat16(array) if tensor.storage.dtype == "bfloat16" else array
        return to_float32(wide, shown(name), self.path)

    def _flat(self, tensor: Tensor) -> np.ndarray:
        storage = tensor.storage
        if storage.key not in self._numbers:
            data = self._container.read(storage)
            self._numbers[storage.key] = data.view("<u2" if storage.dtype == "bfloat16" else storage.dtype)
        return self._numbers[storage.key]


def is_torch_file(path: Path) -> bool:
    """Whether a file starts as `torch.save` starts one; damaged ones too. Raises CheckpointError if unreadable."""
    return path.is_file() and _kind(path) is not None


def open_torch(path: Path) -> TorchFile:
    """Read a file's pickle; no tensor yet.

    Raises:
        CheckpointError: it is not one of `torch.save`, is damaged, names what is not known, or claims to hold more
            than its size allows.
    """
    opened = _opened.get()
    if opened is not None and path in opened:
        return opened[path]
    file = TorchFile(path, _container(path))
    if opened is not None:
        opened[path] = file
    return file


def _container(path: Path) -> Container:
    kind = _kind(path)
    if kind is None:
        raise CheckpointError(f"{path} is no file of torch.save: give the .pt file itself")
    try:
        return kind(path)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read ({e.strerror}): give a file that can be") from None


def _kind(path: Path) -> type[Container] | None:
    try:
        with path.open("rb") as f:
            head = f.read(64)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read ({e.strerror}): give a file that can be") from None
    return next((container for container in CONTAINERS if container.starts(head)), None)


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Within the block a file is parsed once, however many origins look at it."""
    token = _opened.set({} if (outer := _opened.get()) is None else outer)
    try:
        yield
    finally:
        _opened.reset(token)
