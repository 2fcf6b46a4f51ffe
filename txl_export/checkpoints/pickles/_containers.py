"""The two containers of `torch.save`: zip archives (since 1.6), and pickles followed by raw storages (before)."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from txl_export.checkpoints.pickles._machine import read_pickle
from txl_export.checkpoints.pickles._names import Name, storage_dtype
from txl_export.checkpoints.pickles._plain import Storage
from txl_export.checkpoints.pickles._text import shown
from txl_export.errors import CheckpointError
from txl_export.files import first_line

# The number that old files start with, as `torch.serialization` has it.
_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_VERSION = 1001
_BLOCK = 1 << 24
_LOCAL_HEADER = 30


class Container(Protocol):
    """One way of laying out a file."""

    kind: str
    root: Any

    def __init__(self, path: Path) -> None:
        """Read the pickle; raises CheckpointError or OSError."""

    @staticmethod
    def starts(head: bytes) -> bool:
        """Whether a file with these first 64 bytes is one."""
        ...

    def read(self, storage: Storage) -> np.ndarray:
        """The bytes of a storage, uint8; raises CheckpointError."""
        ...


class _Storages:
    """The storages that a pickle names, by key; each is described once and always the same."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.by_key: dict[str, Storage] = {}

    def __call__(self, value: Any) -> Any:
        """What a persistent id stands for: a class (old files keep its source, which is ignored) or a storage."""
        kind, rest = (value[0], value[1:]) if isinstance(value, tuple) and value else (None, ())
        if kind == "module" and rest and isinstance(rest[0], Name):
            return rest[0]
        if kind != "storage" or len(rest) not in (4, 5) or (len(rest) == 5 and rest[4] is not None):
            raise CheckpointError(
                f"{self.source} refers to {shown(kind)}, expected a whole storage or a class: give another file"
            )
        return self._described(*rest[:4])

    def _described(self, kind: Any, key: Any, _device: Any, numel: Any) -> Storage:
        dtype = storage_dtype(kind.name) if isinstance(kind, Name) else None
        if dtype is None or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise CheckpointError(
                f"{self.source} is damaged, it has a storage without a type, a key or a size: copy it again"
            )
        storage = Storage(key, dtype, numel)
        if self.by_key.setdefault(key, storage) != storage:
            raise CheckpointError(
                f"{self.source} is damaged, it describes storage {shown(key)} in two ways: copy it again"
            )
        return storage


class ZipContainer:
    """An archive of data.pkl and one entry per storage, all stored as they are."""

    kind = "zip"

    def __init__(self, path: Path) -> None:
        """Check the entries against the file's size and read data.pkl."""
        self.path = path
        self._entries = _checked_entries(path)
        pickles = [name for name in self._entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise CheckpointError(
                f"{path} is a zip archive without a data.pkl, expected one that torch.save wrote: give the .pt file"
            )
        self._folder = pickles[0].removesuffix("data.pkl")
        if f"{self._folder}constants.pkl" in self._entries:
            raise CheckpointError(f"{path} is a TorchScript program: give the checkpoint that it was made of")
        if self._bytes("byteorder") not in (None, b"little"):
            raise CheckpointError(f"{path} was written on a big-endian machine: save it again on another")
        storages = _Storages(str(path))
        self.root = read_pickle(io.BytesIO(self._bytes("data.pkl") or b""), str(path), storages)
        for storage in storages.by_key.values():
            self._check(storage)

    @staticmethod
    def starts(head: bytes) -> bool:
        """Whether a file with these first bytes is a zip archive."""
        return head.startswith(b"PK\x03\x04")

    def read(self, storage: Storage) -> np.ndarray:
        """The bytes of a storage, uint8, their checksum compared."""
        return self._entry(self._entries[f"{self._folder}data/{storage.key}"])

    def _check(self, storage: Storage) -> None:
        entry = self._entries.get(f"{self._folder}data/{storage.key}")
        if entry is None or entry.file_size != storage.nbytes:
            found = "is missing" if entry is None else f"has {entry.file_size:,} bytes"
            raise CheckpointError(
                f"{self.path}: storage {shown(storage.key)} {found}, expected {storage.nbytes:,}: copy the file again"
            )

    def _bytes(self, name: str) -> bytes | None:
        entry = self._entries.get(self._folder + name)
        return None if entry is None else self._entry(entry).tobytes()

    def _entry(self, entry: zipfile.ZipInfo) -> np.ndarray:
        """The bytes of an entry that is stored as it is; `zipfile` would read all names again for each."""
        out = np.empty(entry.file_size, dtype=np.uint8)
        try:
            with self.path.open("rb") as f:
                f.seek(entry.header_offset)
                head = f.read(_LOCAL_HEADER)
                # A local header ends with the lengths of a name and of extra fields, which follow it.
                f.seek(sum(struct.unpack("<HH", head[-4:])), 1)
                _fill(f, out)
        except (OSError, EOFError, ValueError, struct.error) as e:
            raise CheckpointError(f"{self.path} is damaged ({shown(first_line(e))}): copy it again") from None
        if zlib.crc32(out.data) != entry.CRC:
            raise CheckpointError(f"{self.path}: the checksum of {shown(entry.filename)} is wrong: copy it again")
        return out


def _checked_entries(path: Path) -> dict[str, zipfile.ZipInfo]:
    """Entries by name. Nothing is compressed and nothing overlaps, so no entry can be larger than the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception as e:  # zipfile's errors have no common base
        raise CheckpointError(f"{path} is cut short or damaged ({shown(first_line(e))}): copy it again") from None
    packed = [e for e in entries if e.compress_type != zipfile.ZIP_STORED or e.compress_size != e.file_size]
    if packed:
        raise CheckpointError(
            f"{path}: {shown(packed[0].filename)} is compressed, which torch.save never does: save it again"
        )
    if sum(e.file_size for e in entries) > path.stat().st_size:
        raise CheckpointError(f"{path} is damaged, it claims more bytes than it has: copy it again")
    by_name = {e.filename: e for e in entries}
    if len(by_name) != len(entries):
        raise CheckpointError(f"{path} has two entries of one name, which torch.save never writes: give another file")
    return by_name


def _fill(f: Any, out: np.ndarray) -> None:
    view, done = out.data, 0
    while done < len(view):
        block = f.read(min(_BLOCK, len(view) - done))
        if not block:
            raise EOFError("a storage ends too early")
        view[done : done + len(block)] = block
        done += len(block)


class OldContainer:
    """Pickles of a magic number, a version, the machine, the object and the storages' keys, then the storages."""

    kind = "old"

    def __init__(self, path: Path) -> None:
        """Read all pickles and find where each storage starts."""
        self.path = path
        storages = _Storages(str(path))
        with path.open("rb") as f:
            _, version, machine = (read_pickle(f, str(path)) for _ in range(3))
            if version != _VERSION or not isinstance(machine, dict) or machine.get("little_endian") is not True:
                raise CheckpointError(f"{path} is of an unknown version or a big-endian machine: save it again")
            self.root = read_pickle(f, str(path), storages)
            keys = read_pickle(f, str(path))
            if not isinstance(keys, list) or set(storages.by_key) - {k for k in keys if isinstance(k, str)}:
                raise CheckpointError(f"{path} is damaged, it lacks storages that its pickle names: copy it again")
            self._starts = self._find(f, keys, storages)

    def _find(self, f: BinaryIO, keys: list[Any], storages: _Storages) -> dict[str, int]:
        """Where the bytes of each storage start; each is preceded by its size in numbers."""
        starts, at, end = {}, f.tell(), self.path.stat().st_size
        for key in keys:
            storage = storages.by_key.get(key) if isinstance(key, str) else None
            f.seek(at)
            if storage is None or int.from_bytes(f.read(8), "little") != storage.numel or key in starts:
                raise CheckpointError(
                    f"{self.path}: storage {shown(key)} is not what its pickle says: copy the file again"
                )
            starts[key] = at + 8
            at += 8 + storage.nbytes
            if at > end:
                raise CheckpointError(f"{self.path} is cut short: storage {shown(key)} has no end: copy it again")
        return starts

    @staticmethod
    def starts(head: bytes) -> bool:
        """Whether a file with these first bytes starts with torch's magic number."""
        return head.startswith(b"\x80") and _MAGIC in head[:32]

    def read(self, storage: Storage) -> np.ndarray:
        """The bytes of a storage, uint8."""
        out = np.empty(storage.nbytes, dtype=np.uint8)
        try:
            with self.path.open("rb") as f:
                f.seek(self._starts[storage.key])
                _fill(f, out)
        except (OSError, EOFError) as e:
            raise CheckpointError(f"{self.path} cannot be read ({first_line(e)}): copy it again") from None
        return out


CONTAINERS: tuple[type[Container], ...] = (ZipContainer, OldContainer)
