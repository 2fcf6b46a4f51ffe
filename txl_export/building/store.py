"""Engines into a bundle's folder: one build at a time, all engines or none, nothing left of those that were cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from txl_export.bundle import MANIFEST, Bundle, file_entry
from txl_export.engines import PENDING, EngineSpec, engine_file, is_leftover
from txl_export.errors import BundleError, EnvironmentMismatch, TxlError
from txl_export.files import disk_errors, read_json, write_json

Identity = tuple[int, int]


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[Identity]:
    """Hold a bundle against other builds; the system lets go when this process ends in any way.

    Yields:
        What tells the folder from another that takes its place.

    Raises:
        EnvironmentMismatch: another build holds it, or it takes no files.
    """
    if not os.access(folder, os.W_OK):
        raise EnvironmentMismatch(f"{folder} cannot be written, and engines go into it: copy the bundle elsewhere")
    try:
        import fcntl
    except ImportError:  # Windows cannot open folders, nor lock them
        yield _identity(folder)
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentMismatch(f"another build is at work on {folder}: wait until it has ended") from None
        yield _identity(folder)
    finally:
        os.close(handle)


def _identity(folder: Path) -> Identity:
    found = folder.stat()
    return found.st_dev, found.st_ino


def clear_leftovers(bundle: Bundle) -> None:
    """Remove what interrupted builds left; only while the bundle is held."""
    graphs = [g.file for g in bundle.manifest.graphs]
    for file in bundle.path.iterdir():
        if file.name not in bundle.manifest.files and is_leftover(file.name, graphs):
            file.unlink(missing_ok=True)


def is_intact(bundle: Bundle, engine: EngineSpec) -> bool:
    """Whether an engine's file is the one that was built."""
    try:
        bundle.check_file(engine.file)
    except TxlError:
        return False
    return True


@contextlib.contextmanager
def pending(bundle: Bundle, planned: Sequence[EngineSpec]) -> Iterator[list[tuple[EngineSpec, Path]]]:
    """Files to build into, which vanish at the end unless `commit` has taken them.

    Yields:
        each engine under the name that it will have, and the file to write.
    """
    named = [dataclasses.replace(e, file=_name(bundle, e)) for e in planned]
    files = [(e, bundle.path / f"{e.file}{PENDING}") for e in named]
    try:
        yield files
    finally:
        for _, file in files:
            file.unlink(missing_ok=True)


def _name(bundle: Bundle, engine: EngineSpec) -> str:
    """Not the name of the engine that it replaces: until the manifest is written, that one counts."""
    return engine_file(engine.graph, engine.package, engine.target, bundle.manifest.files)


def commit(bundle: Bundle, identity: Identity, built: Sequence[tuple[EngineSpec, Path]]) -> Bundle:
    """Engines first, then the manifest that names them, then those that they replace go.

    Args:
        bundle: as it was when the build began.
        identity: of its folder then.
        built: engines and their pending files.

    Raises:
        BundleError: the bundle was exported anew in the meantime.
        EnvironmentMismatch: the disk is full.
    """
    m, folder = bundle.manifest, bundle.path
    entries = {e.file: file_entry(file) for e, file in built}
    if _identity(folder) != identity or read_json(folder / MANIFEST, BundleError) != m.to_dict():
        raise BundleError(f"{folder} was exported anew while engines were built: build again")
    slots = {e.slot for e, _ in built}
    replaced = {e.file for e in m.engines if e.slot in slots}
    new = dataclasses.replace(
        m,
        engines=tuple(sorted([*(e for e in m.engines if e.slot not in slots), *(e for e, _ in built)], key=_order)),
        files={name: entry for name, entry in m.files.items() if name not in replaced} | entries,
    )
    try:
        with disk_errors(folder):
            for engine, file in built:
                file.replace(folder / engine.file)
        write_json(folder / MANIFEST, new.to_dict())
    finally:
        _forget(folder, replaced | set(entries))
    return Bundle(folder, new)


def _forget(folder: Path, names: Iterable[str]) -> None:
    """Remove those of some files that the manifest does not name, whichever manifest it is by now."""
    kept = read_json(folder / MANIFEST, BundleError)["files"]
    for name in set(names) - set(kept):
        (folder / name).unlink(missing_ok=True)


def _order(engine: EngineSpec) -> tuple[str, str, str]:
    return engine.package, engine.target.label, engine.graph
