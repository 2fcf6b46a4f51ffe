"""Files that are complete or absent: atomic writes, folders swapped in whole, hashes, safe paths."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from txl_export.errors import EnvironmentMismatch, InputError, TxlError


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in blocks."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256_blocks(f)


def _sha256_blocks(f: Any) -> str:
    digest = hashlib.sha256()  # Python 3.10 has no file_digest
    while block := f.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def read_json(path: Path, error: type[TxlError]) -> Any:
    """Parse a JSON file; raises `error` with one line when it is absent or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path} does not exist: what should hold it is incomplete, copy it again") from None
    except (OSError, ValueError, RecursionError) as e:  # ValueError: not UTF-8, not JSON, a number too long
        raise error(f"{path} is not readable JSON ({first_line(e)})") from None


def to_json(value: Any) -> str:
    """JSON that people can read too; numbers that JSON lacks (infinities, NaN) become null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, (to_json(value) + "\n").encode())


def write_atomic(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Args:
        path: the file.
        data: its bytes, or parts of them in order, which need not be held together.

    Raises:
        InputError: a device or a pipe, whose place a file would take.
        EnvironmentMismatch: a full disk, or a place that takes no files.
    """
    _refuse_special(path)
    path = path.resolve() if path.is_symlink() else path  # a link stays, what it points to is replaced
    with (
        disk_errors(path),
        _folder(path.parent),
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as f,
    ):
        try:
            for part in (data,) if isinstance(data, bytes) else data:
                f.write(part)
            f.flush()
            os.fsync(f.fileno())
            os.chmod(f.name, 0o644)  # noqa: PTH101 - the temporary file starts private
            Path(f.name).replace(path)
        except BaseException:
            Path(f.name).unlink(missing_ok=True)
            raise


def require_writable(path: Path, apart_from: Iterable[Path] = ()) -> None:
    """Raise InputError now for what would fail after an hour, or would write over what is read.

    Args:
        path: a file to write; it and its folders may be missing.
        apart_from: files that it must not be.
    """
    _refuse_special(path)
    if path.is_dir():
        raise InputError(f"{path} cannot be written, it is a folder: name a file in it")
    folder = next(p for p in path.absolute().parents if p.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{path} cannot be written, {folder} is no folder that takes files: choose another")
    if path.resolve() in {other.resolve() for other in apart_from}:
        raise InputError(f"{path} is named twice, or is read too: writing it would lose the other, choose another name")


def _refuse_special(path: Path) -> None:
    """Renaming a new file over a device would remove the device, and as root it works."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a device or a pipe, expected a file: name one, such as out.json")


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    yield


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one line."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentMismatch(f"no space left on the disk of {path}: free some, nothing was written") from e
        if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise EnvironmentMismatch(f"{path} cannot be written ({e.strerror}): choose another folder") from e
        raise


def require_space(path: Path, needed: int) -> None:
    """Raise EnvironmentMismatch when the disk of `path` has fewer than `needed` bytes free."""
    existing = path if path.exists() else next(p for p in path.absolute().parents if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise EnvironmentMismatch(
            f"{path} needs about {needed / 1e6:.0f} MB and its disk has {free / 1e6:.0f} MB free: free some space"
        )


@contextlib.contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of `target` when the block ends well, and vanishes when it fails.

    Yields:
        The folder to write into, on the same disk as `target`.
    """
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            yield work
            work.chmod(0o755)
            _swap(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
    was = old / "was"
    try:
        target.rename(was)
        new.rename(target)
    except BaseException:
        if was.exists():
            was.rename(target)  # where even this fails, the old folder is kept under its temporary name
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def inside(folder: Path, name: object, error: type[TxlError]) -> Path:
    """The file `name` directly in `folder`; raises `error` for anything that would lie elsewhere."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        raise error(f"{folder} names the file {name!r}: only plain names inside the folder are allowed")
    return folder / name


def first_line(e: Exception, most: int = 200) -> str:
    """What an error of another package says, in one line; it may quote what is in a file, so escaped and cut."""
    line = next(iter(str(e).splitlines()), "") or type(e).__name__
    line = line if line.isprintable() else ascii(line)[1:-1]
    return line if len(line) <= most else line[:most] + "..."
