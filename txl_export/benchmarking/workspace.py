"""Temporary folders that go with the process that made them, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PREFIX, LOCK = "txl-bench-", "lock"


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder that is removed at the end; those of processes that were killed are removed first."""
    root = Path(tempfile.gettempdir())
    _clear(root)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    try:
        with _held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system lets go when this process ends in any way."""
    fcntl = _fcntl()
    if fcntl is None:
        yield
        return
    with (folder / f".{LOCK}").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        (folder / f".{LOCK}").replace(folder / LOCK)  # under this name only once it is held
        yield


def _clear(root: Path) -> None:
    """Remove this user's folders whose lock nobody holds."""
    fcntl = _fcntl()
    for lock in root.glob(f"{PREFIX}*/{LOCK}") if fcntl else ():
        assert fcntl is not None
        with contextlib.suppress(OSError), lock.open("r+") as f:  # another user's, or just removed
            if lock.stat().st_uid != os.getuid():
                continue
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _fcntl() -> ModuleType | None:
    """Locks of files, where the system has them."""
    try:
        import fcntl
    except ImportError:
        return None
    return fcntl
