"""The texts: which files of the running Python's standard library are trained on, and which are held out."""

from __future__ import annotations

import hashlib
import importlib
import random
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# Held out: never trained on. `name.py` is a module, `name/` a package.
VALIDATION = (
    "calendar.py",
    "fractions.py",
    "optparse.py",
    "shlex.py",
    "telnetlib.py",
    "textwrap.py",
    "tomllib/",
)
TEST = (
    "argparse.py",
    "configparser.py",
    "contextlib.py",
    "csv.py",
    "dataclasses.py",
    "difflib.py",
    "gettext.py",
    "graphlib.py",
    "heapq.py",
    "ipaddress.py",
    "json/",
    "logging/",
    "random.py",
    "selectors.py",
    "statistics.py",
    "tarfile.py",
    "wsgiref/",
    "zoneinfo/",
)

# Not trained on: tests (they would name and quote the held-out modules), what pip installed, the second
# evaluation text, and folders that hold no library code.
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idle_test", "pydoc_data", "lib-dynload", "__pycache__"}
# Written by the build of one machine's Python.
SKIPPED_PREFIXES = ("_sysconfigdata", "config-")
# Character tables generated from Unicode's files: half a page of code, then 256 lines of hexadecimal.
GENERATED = b"decoding_table = ("

# Ends every file, so that a reader of the stream knows where a new one begins; no source contains it.
SEPARATOR = b"\0"


def training_text(seed: int) -> bytes:
    """All files neither held out nor skipped, in an order drawn by `seed`, each ended by SEPARATOR."""
    names = [name for name in _names() if not _held_out(name)]
    random.Random(seed).shuffle(names)
    texts = (_read(name) for name in names)
    return b"".join(text + SEPARATOR for text in texts if text and GENERATED not in text)


def held_out_text(entries: tuple[str, ...]) -> bytes:
    """The files of some held-out entries, in the order of their names, each ended by SEPARATOR."""
    mine = [name for name in _names() if name.startswith(entries)]
    for entry in entries:
        if not any(name.startswith(entry) for name in mine):
            raise FileNotFoundError(f"{_root() / entry} does not exist: use a Python that has it (3.11)")
    return b"".join(_read(name) + SEPARATOR for name in mine)


def topics_text() -> bytes:
    """The language reference as the interactive help shows it: prose about Python, not code."""
    topics = importlib.import_module("pydoc_data.topics").topics
    return "\n".join(topics[key] for key in sorted(topics)).encode()


def lanes(text: bytes, count: int) -> Tensor:
    """Cut a text into `count` equal runs of bytes, uint8 [count, n]; the last few bytes may be left over."""
    ids = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
    n = len(ids) // count
    return ids[: count * n].view(count, n)


def digest(text: bytes) -> str:
    """Short SHA-256 of a text: tells one Python version's sources from another's."""
    return hashlib.sha256(text).hexdigest()[:16]


def _root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _names() -> list[str]:
    """Paths of the library's own .py files below its root, with forward slashes, sorted."""
    paths = (p.relative_to(_root()) for p in _root().rglob("*.py"))
    return sorted(p.as_posix() for p in paths if not _skipped(p))


def _skipped(path: Path) -> bool:
    return bool(SKIPPED_FOLDERS & set(path.parts[:-1])) or path.parts[0].startswith(SKIPPED_PREFIXES)


def _held_out(name: str) -> bool:
    return name.startswith(VALIDATION + TEST)


def _read(name: str) -> bytes:
    return (_root() / name).read_bytes().replace(b"\r\n", b"\n")
