"""One `weights.bin` for all graphs of a bundle: equal tensors are stored once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

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

    def __enter__(self) -> WeightStore:
        """Use as a context manager: the file is closed at the end."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file."""
        self._file.close()

    def move_out(self, model: ir.Model) -> None:
        """Put the model's large initializers into the file and let the model refer to them."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= _INLINE_BYTES:
                value.const_value = self._add(value.name or "", tensor)

    def _add(self, name: str, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        array = np.ascontiguousarray(tensor.numpy())
        data = array.reshape(-1).view(np.uint8).data
        key = (str(array.dtype), hashlib.sha256(data).digest())
        if key not in self._places:
            self._file.seek(-self._file.tell() % _ALIGNMENT, 1)
            self._places[key] = (self._file.tell(), data.nbytes)
            self._file.write(data)
        offset, length = self._places[key]
        return ir.ExternalTensor(
            self.path.name,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(array.shape),
            name=name,
            base_dir=self.path.parent,
        )
