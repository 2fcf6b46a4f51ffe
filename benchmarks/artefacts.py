"""What peers load, kept in a folder that git ignores, and made again when weights, code or packages change."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.peers import PEERS
from benchmarks.shapes import CACHE, Shape, make_checkpoint
from txl_export.benchmarking.process import environment
from txl_export.errors import EnvironmentMismatch, InputError
from txl_export.files import read_json, replacing_folder, write_json

_KEY, _FILES = "key.json", "files"
_PACKAGES = ("torch", "onnx", "onnxscript", "transformers")
_AT_ONCE = 2  # builds are not timed


@dataclass(frozen=True)
class Artefact:
    """What one peer loads of one shape; make it by `of`.

    Attributes:
        peer: a name of `PEERS`.
        shape: the model.
        mem_len: M; 0 for what serves every M.
        segment_lens: the lengths that it must take; none for what takes all.
    """

    peer: str
    shape: Shape
    mem_len: int = 0
    segment_lens: tuple[int, ...] = ()

    @classmethod
    def of(cls, peer: str, shape: Shape, mem_len: int, segment_lens: tuple[int, ...]) -> Artefact:
        """What a peer loads for these lengths: equal for all that are served by the same files."""
        return cls(peer, shape, mem_len, segment_lens) if PEERS[peer].built == "memory" else cls(peer, shape)

    @property
    def place(self) -> Path:
        """Where it is kept, with what it was made of."""
        return CACHE / self.shape.name / (f"{self.peer}-M{self.mem_len}" if self.mem_len else self.peer)

    @property
    def folder(self) -> Path:
        """What the peer's process is given."""
        return self.place / _FILES

    @property
    def seconds(self) -> float:
        """About how long it takes to make; 0 where it is there."""
        return 0.0 if self.made() else PEERS[self.peer].build_seconds * max(1, len(self.segment_lens))

    def made(self) -> bool:
        """Whether it is there, made of the same with the same, and takes the lengths."""
        if not PEERS[self.peer].built:
            return True
        try:
            found = read_json(self.place / _KEY, InputError)
            return found["of"] == _origin(self.shape) and set(self.segment_lens) <= set(found["segment_lens"])
        except (InputError, KeyError, TypeError):
            return False

    def key(self) -> dict[str, Any]:
        """What it is made of."""
        return {"of": _origin(self.shape), "segment_lens": list(self.segment_lens)}


def _origin(shape: Shape) -> dict[str, Any]:
    return {"weights": shape.digest, "code": _code(), "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of the packages that build; absent ones are left out."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@functools.cache
def _code() -> str:
    """SHA-256 of all that an export may depend on: the package and the peers."""
    import txl_export

    digest = hashlib.sha256()
    for package in (Path(txl_export.__file__).parent, Path(benchmarks.__file__).parent / "peers"):
        for file in sorted(package.rglob("*.py")):
            digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    return digest.hexdigest()


def ensure(artefacts: Iterable[Artefact], say: Callable[[str], None]) -> None:
    """Make what is missing, in processes that end with it; two at once, since nothing is timed meanwhile.

    Args:
        artefacts: what a comparison or a whole run needs.
        say: called with what is being done.

    Raises:
        EnvironmentMismatch: a build failed, or the disk is full.
    """
    missing = [a for a in dict.fromkeys(artefacts) if not a.made()]
    for shape in {a.shape.name: a.shape for a in missing}.values():
        say(f"random weights of {shape.name}")
        make_checkpoint(shape)
    groups: dict[tuple[str, str], list[Artefact]] = defaultdict(list)
    for a in missing:
        groups[a.peer, a.shape.name].append(a)
    longest_first = sorted(groups.values(), key=lambda group: -sum(a.seconds for a in group))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(_build, group, say) for group in longest_first]:
            done.result()


def _build(group: list[Artefact], say: Callable[[str], None]) -> None:
    """Make all of one peer and shape in one process; each takes its place when all are done."""
    peer, shape = group[0].peer, group[0].shape
    places = ", ".join(str(a.mem_len) for a in group if a.mem_len)
    say(f"building {peer} of {shape.name}{' for M = ' + places if places else ''}")
    folder = CACHE / shape.name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
        folders = [Path(work, str(i)) for i in range(len(group))]
        for out in folders:
            out.mkdir()
        _run(peer, [_job(a, out) for a, out in zip(group, folders, strict=True)])
        for a, out in zip(group, folders, strict=True):
            with replacing_folder(a.place) as place:
                out.rename(place / _FILES)
                write_json(place / _KEY, a.key())


def _job(a: Artefact, out: Path) -> dict[str, Any]:
    """As `benchmarks.peers.build` takes it."""
    lengths = {"mem_len": a.mem_len, "segment_lens": list(a.segment_lens)}
    return {"checkpoint": str(a.shape.checkpoint), "out": str(out), **lengths}


def _run(peer: str, jobs: list[dict[str, Any]]) -> None:
    command = [sys.executable, "-m", "benchmarks.peers.build", peer, json.dumps(jobs)]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment(1), check=False)
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or ["it said nothing"]
        raise EnvironmentMismatch(f"building {peer} failed (exit code {ran.returncode}): {said[-1].strip()}")
