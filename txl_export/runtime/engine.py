"""Engines: a model loaded on a backend, from which sessions are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from txl_export.backends import LoadedModel
from txl_export.backends import backend as backend_named
from txl_export.backends.base import ModelInfo
from txl_export.bundle import MANIFEST, Bundle
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.errors import InputError
from txl_export.runtime import snapshot
from txl_export.runtime.choosing import load_fastest
from txl_export.runtime.scoring import token_log_probs
from txl_export.runtime.session import Session

# More than any machine here has use for: starting them would take longer than running.
MOST_THREADS = 1024


class Engine:
    """A loaded model; sessions made from it share its weights."""

    def __init__(self, model: LoadedModel, choice: str | None = None) -> None:
        """Wrap a model that a backend has loaded; use `Engine.load`."""
        self._model = model
        self._choice = model.name if choice is None else choice

    @classmethod
    def load(
        cls,
        source: str | Path | Bundle | Checkpoint,
        backend: str | None = None,
        mem_len: int | None = None,
        segment_len: int | None = None,
        threads: int | None = None,
        packed: bool | None = None,
    ) -> Engine:
        """Load a bundle or a checkpoint.

        Args:
            source: a bundle (folder or opened), or a checkpoint (path or loaded).
            backend: its name, such as "onnxruntime" for bundles and "eager" for checkpoints; no other is taken in
                its place. None for the fastest that runs the source here: `choice` and the log `txl_export` say which,
                and why not those that would be faster.
            mem_len: memory length M in tokens; a bundle's is fixed, but for layout `ring`, where it is the longest.
            segment_len: tokens after which feeds are cut by default; None for the bundle's.
            threads: CPU threads; None for all cores.
            packed: whether the weights of every graph, or of none, are rearranged for products of several rows: a
                private copy of the model for each such graph of a process, and faster prompts and batches. None packs
                the graphs where most is gained, the longest and that of several streams' single tokens.

        Raises:
            BundleError, CheckpointError: the source is not what it should be.
            InputError: an unknown backend, or one that does not run such a source.
            EnvironmentMismatch: this machine lacks what the backend needs, or what each of them needs.
        """
        if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
            raise InputError(f"threads is {threads!r}, expected 1 to {MOST_THREADS}")
        if packed not in (None, True, False):
            raise InputError(f"packed is {packed!r}, expected True, False or None (where it pays)")
        if not isinstance(source, str | os.PathLike | Bundle | Checkpoint):
            raise InputError(f"a {type(source).__name__} cannot be loaded: give the path of a bundle or checkpoint")
        for name, value in (("mem_len", mem_len), ("segment_len", segment_len)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
                raise InputError(f"{name} is {value!r}, expected a number of tokens")
        if backend is not None and not isinstance(backend, str):
            raise InputError(f"backend is {backend!r}, expected a name such as 'onnxruntime', or None")
        opened = _open(source)
        if backend is None:
            model, choice = load_fastest(opened, lambda b: b.load(opened, mem_len, segment_len, threads))
        else:
            model, choice = backend_named(backend).load(opened, mem_len, segment_len, threads), backend
        model.packed = packed
        return cls(model, choice)

    @property
    def info(self) -> ModelInfo:
        """Architecture, layout, lengths and heads of the model."""
        return self._model.info

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self._model.name

    @property
    def choice(self) -> str:
        """In one line the backend, and where none was named why not the faster ones.

        For example "onnxruntime; not tensorrt (no engines: txl-export build engines/x --backend tensorrt)".
        """
        return self._choice

    @property
    def model(self) -> LoadedModel:
        """The backend's own object."""
        return self._model

    def warm_up(self) -> None:
        """Load every graph now instead of at its first use."""
        self._model.warm_up()

    def session(self, batch_size: int = 1, mem_len: int | None = None) -> Session:
        """Start streams with a memory of their own.

        Args:
            batch_size: streams.
            mem_len: tokens that they remember; None for the engine's M. Layout `ring` takes any number up to it.

        Raises:
            InputError: numbers that cannot be had.
        """
        return Session(self._model, batch_size, mem_len)

    def restore(self, path: str | Path) -> Session:
        """A session that `Session.save` wrote.

        Raises:
            InputError: the file is damaged, or another model, layout or M saved it.
        """
        batch_size, mem_len, state = snapshot.load(Path(path), self.info)
        session = self.session(batch_size, mem_len)
        snapshot.check_state(Path(path), state, session._streams.state(), mem_len, session._streams.grows)
        session._load(state)
        return session

    def score(
        self,
        ids: Sequence[int] | np.ndarray,
        segment_len: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> float:
        """Mean nats per token of one long stream; the first token is given, not predicted.

        Args:
            ids: tokens, two or more.
            segment_len: tokens per segment; None for the engine's default.
            progress: called with the number of tokens done after each segment.
        """
        return -float(np.mean(token_log_probs(self.session(1), ids, segment_len, progress), dtype=np.float64))


def _open(source: str | Path | Bundle | Checkpoint) -> Bundle | Checkpoint:
    if isinstance(source, Bundle | Checkpoint):
        return source
    is_bundle = (Path(source) / MANIFEST).is_file()
    return Bundle.open(source) if is_bundle else load_checkpoint(source)
