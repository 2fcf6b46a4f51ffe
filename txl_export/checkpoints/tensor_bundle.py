"""Reading of TensorFlow's checkpoints (V2, "tensor bundles") without TensorFlow.

PREFIX.index is a table (`sstable`) of tensor names to where their bytes lie in PREFIX.data-00000-of-0000N.
Source: TensorFlow's `core/protobuf/tensor_bundle.proto`, `tensor_shape.proto` and `types.proto`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl_export.checkpoints.crc32c import masked_crc32c
from txl_export.checkpoints.sstable import Damaged, read_table, read_varint
from txl_export.errors import CheckpointError

INDEX = ".index"
# Numbers of `DataType` that a model's tensors may have; strings and objects are no numbers to compute with.
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 6: "|i1", 9: "<i8", 10: "|b1", 14: "bfloat16", 19: "<f2"}
_MOST_INDEX_BYTES = 1 << 26  # 64 MiB: some hundred thousand tensors
_MOST_SHARDS = 99999  # five digits in the file names
_MOST_DIMENSIONS = 32  # a model's tensors have two or three; numpy's own limit is 64
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Entry:
    """Where a tensor's bytes are.

    Attributes:
        dtype: number of its `DataType`.
        shape: its dimensions.
        shard: which data file.
        offset: first byte in it.
        size: bytes.
        checksum: masked CRC-32C of them.
        sliced: whether the tensor was saved in parts, under names of their own.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


class TensorBundle:
    """The tensors of a checkpoint, read when they are asked for."""

    def __init__(self, prefix: Path) -> None:
        """Read the index of PREFIX; raises CheckpointError."""
        self.prefix = prefix
        self.index = prefix.with_name(prefix.name + INDEX)
        try:
            if self.index.stat().st_size > _MOST_INDEX_BYTES:
                raise Damaged(f"it has more than {_MOST_INDEX_BYTES >> 20} MiB")
            table = dict(read_table(self.index.read_bytes()))
            self._n_shards = _parse_header(table.pop(b"", b""))
            self.entries = {_name(key): _parse_entry(value) for key, value in table.items()}
        except OSError as e:
            raise CheckpointError(f"{self.index} cannot be read ({e.strerror}): give a readable checkpoint") from None
        except Damaged as e:
            raise CheckpointError(f"{self.index} is no readable TensorFlow checkpoint: {e}") from None

    def read(self, name: str) -> np.ndarray:
        """A tensor of the index, floating point as float32; raises CheckpointError."""
        entry = self.entries[name]
        try:
            return self._decode(entry, self._bytes(entry))
        except Damaged as e:
            raise CheckpointError(f"{self._shard(entry)}: {name} cannot be read: {e}") from None

    def _shard(self, entry: Entry) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self._n_shards:05d}")

    def _bytes(self, entry: Entry) -> bytes:
        if entry.sliced:
            raise Damaged("it was saved in slices (a partitioned variable), which is not supported")
        if entry.dtype not in _DTYPES:
            raise Damaged(f"its type has the number {entry.dtype}, expected floating point or integers")
        dtype = _DTYPES[entry.dtype]
        needed = math.prod(entry.shape) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
        if entry.size != needed:
            raise Damaged(f"it has {entry.size} bytes, {needed} expected from its shape {list(entry.shape)}")
        path = self._shard(entry)
        try:
            with path.open("rb") as f:
                if entry.offset + entry.size > path.stat().st_size:
                    raise Damaged("the file ends before it, it is truncated or belongs to another index")
                f.seek(entry.offset)
                data = f.read(entry.size)
        except OSError as e:
            raise Damaged(f"{e.strerror}, the index names this file") from None
        if masked_crc32c(data) != entry.checksum:
            raise Damaged("its checksum differs, the file is damaged or belongs to another index")
        return data

    @staticmethod
    def _decode(entry: Entry, data: bytes) -> np.ndarray:
        dtype = _DTYPES[entry.dtype]
        if dtype == "bfloat16":
            halves = np.frombuffer(data, dtype="<u2")
            return (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry.shape)
        found = np.frombuffer(data, dtype=dtype).reshape(entry.shape)
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes Inf, which the weights' check names
            return found.astype(np.float32) if found.dtype.kind == "f" else found


def _name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Damaged("a tensor's name is no text") from None


def _parse_header(data: bytes) -> int:
    header = dict(_fields(data))
    if header.get(2, 0) != 0:
        raise Damaged("it was written on a big-endian machine")
    n = _number(header, 1)
    if not 1 <= n <= _MOST_SHARDS:
        raise Damaged(f"it names {n} data files")
    return n


def _parse_entry(data: bytes) -> Entry:
    fields = dict(_fields(data))
    shape = fields.get(2, b"")
    if not isinstance(shape, bytes):
        raise Damaged("an entry has fields of another type")
    dtype, shard, offset, size, checksum = (_number(fields, i) for i in (1, 3, 4, 5, 6))
    return Entry(dtype, _parse_shape(shape), shard, offset, size, checksum, sliced=7 in fields)


def _parse_shape(data: bytes) -> tuple[int, ...]:
    shape = []
    for number, dimension in _fields(data):
        if number == 2 and isinstance(dimension, bytes):
            size = _number(dict(_fields(dimension)), 1)
            if size >= 1 << 63:
                raise Damaged("a dimension is unknown")
            shape.append(size)
    if len(shape) > _MOST_DIMENSIONS:
        raise Damaged(f"a tensor has {len(shape)} dimensions")
    return tuple(shape)


def _number(fields: dict[int, int | bytes], field: int) -> int:
    value = fields.get(field, 0)
    if not isinstance(value, int):
        raise Damaged("an entry has fields of another type")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of a protocol buffer message's fields; raises Damaged."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise Damaged(f"a field has the unknown kind {kind}")
        if at + size > len(data):
            raise Damaged("a field is cut off")
        content = data[at : at + size]
        yield tag >> 3, content if kind == _BYTES else int.from_bytes(content, "little")
        at += size
