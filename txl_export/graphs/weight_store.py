"""One `weights.bin` for all graphs of a bundle: equal tensors are stored once, and rows of a tensor with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor

# Below this many bytes a constant stays inside the graph, where shape inference sees it.
_INLINE_BYTES = 1024
# Offsets are multiples of a page, so that runtimes can map the file.
_ALIGNMENT = 4096


class WeightStore:
    """Appends tensors to a file and remembers where each content went."""

    def __init__(self, path: Path) -> None:
        """Create the file `path`."""
        self.path = path
        self._file: BinaryIO = path.open("wb")
        self._places: dict[tuple[str, bytes], tuple[int, int]] = {}
        # What is written, by its memory; the tensors are kept, so that no other comes to lie there.
        self._written: list[tuple[range, int, TorchTensor]] = []

    def __enter__(self) -> WeightStore:
        """Use as a context manager: the file is closed at the end."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self._file.close()

    def move_out(self, model: ir.Model) -> None:
        """Put the model's large initializers into the file and let the model refer to them."""
        # The largest first: the others may be rows of it.
        for value in sorted(model.graph.initializers.values(), key=_nbytes, reverse=True):
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= _INLINE_BYTES:
                value.const_value = self._add(value.name or "", tensor)

    def _add(self, name: str, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        memory = _memory(tensor)
        place = self._found(memory)
        if place is None:
            place = self._stored(tensor)
            if memory and isinstance(tensor, TorchTensor):
                self._written.append((memory, place[0], tensor))
        offset, length = place
        return ir.ExternalTensor(
            self.path.name,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
            base_dir=self.path.parent,
        )

    def _found(self, memory: range | None) -> tuple[int, int] | None:
        """Where in the file bytes are that were written from there."""
        if memory is None:
            return None
        for written, offset, _ in self._written:
            if memory.start >= written.start and memory.stop <= written.stop:
                return offset + memory.start - written.start, len(memory)
        return None

    def _stored(self, tensor: ir.TensorProtocol) -> tuple[int, int]:
        """Where in the file bytes like a tensor's are, written now where there are none."""
        array = np.ascontiguousarray(tensor.numpy())
        data = array.reshape(-1).view(np.uint8).data
        key = (str(array.dtype), hashlib.sha256(data).digest())
        if key not in self._places:
            self._file.seek(-self._file.tell() % _ALIGNMENT, 1)
            self._places[key] = (self._file.tell(), data.nbytes)
            self._file.write(data)
        return self._places[key]


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _memory(tensor: ir.TensorProtocol) -> range | None:
    """Addresses of a torch tensor's bytes; None for other tensors, and for one whose numbers do not lie in order."""
    if not isinstance(tensor, TorchTensor) or not tensor.raw.is_contiguous():
        return None
    start = tensor.raw.data_ptr()
    return range(start, start + tensor.nbytes)
