"""What tests on a GPU run on: a genuine one, or the stand-in; nothing here knows which."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bundles import Exported
from txl_export import Engine
from txl_export.backends.device.calls import Block, Cuda
from txl_export.errors import DeviceError

BATCH = "1:2:8"


@dataclass(frozen=True, eq=False)
class Machine:
    """A backend on a GPU.

    Attributes:
        backend: its name.
        build: gives the folder of a bundle that the backend runs, made of an exported one.
        genuine: whether there is a GPU.
    """

    backend: str
    build: Callable[[Path], Path]
    genuine: bool

    @functools.cache  # noqa: B019 - machines live as long as the tests
    def bundle(self, exported: Path) -> Path:
        return self.build(exported)

    @functools.cache  # noqa: B019
    def engine(self, exported: Path) -> Engine:
        """Shared by tests."""
        return Engine.load(self.bundle(exported), self.backend)

    def direct(self, exported: Path) -> Engine:
        """An engine whose calls are never captured."""
        engine = Engine.load(self.bundle(exported), self.backend)
        engine.model.capture = False  # type: ignore[attr-defined]
        return engine


class OnDevice:
    """An array on the GPU with `__cuda_array_interface__` and no library behind it."""

    def __init__(self, values: np.ndarray) -> None:
        self.cuda = Cuda()
        self.stream, self.like = self.cuda.stream(), np.ascontiguousarray(values)
        self.block = self.cuda.allocate(self.like.nbytes, "a test's array")
        pinned, self.source = self.cuda.pinned(self.like.nbytes)
        pinned[:] = self.like.view(np.uint8).reshape(-1)
        self.cuda.copy(self.block.address, pinned.ctypes.data, pinned.nbytes, self.stream)  # consumers wait for it

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.block.address, False)
        return {
            "shape": self.like.shape, "typestr": self.like.dtype.str, "data": data, "version": 3,
            "stream": int(self.stream.handle),
        }  # fmt: skip

    def numpy(self) -> np.ndarray:
        """What it holds when all that the GPU was given is done."""
        self.cuda.api.cudaDeviceSynchronize()
        pinned, owned = self.cuda.pinned(self.like.nbytes)
        self.cuda.copy(pinned.ctypes.data, self.block.address, pinned.nbytes, self.stream)
        self.cuda.wait(self.stream)
        found = pinned.view(self.like.dtype).reshape(self.like.shape).copy()
        owned.close()
        return found


@contextmanager
def crowded(leave: int) -> Iterator[None]:
    """So little of the GPU's memory is free."""
    cuda, taken = Cuda(), list[Block]()
    size = cuda.room()[0] - leave
    while size > leave // 4:
        block = _allocated(cuda, size)
        taken += [block] if block else []
        size = cuda.room()[0] - leave if block else size // 2  # what is free may be in pieces
    yield
    for block in taken:
        block.close()


def _allocated(cuda: Cuda, size: int) -> Block | None:
    try:
        return cuda.allocate(size, "crowding")
    except DeviceError:
        return None


def judge_of(made: Exported, batch_size: int) -> Any:
    """A session of the judge."""
    return made.judge.session(batch_size)
