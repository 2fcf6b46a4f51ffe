"""Small bundles on the stand-in, and the same feeds to a session there and to the judge."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.bundles import Exported, ExportFixture, exported_ring
from tests.helpers import random_ids
from tests.standin.arrays import Array
from tests.standin.gpu import Gpu
from tests.standin.plans import with_engines
from txl_export import Engine, Session
from txl_export.backends.device.launch import Launcher
from txl_export.backends.device.streams import DeviceRing, DeviceTurns

B = 2
EXACT = 1e-4
# What other tests share too: heads of the first.
RING_HEADS = ("log_probs", "log_probs@last", "target", "target@last", "top_k")
# Tokens of each feed: one after the other, until the memory of 12 has gone round; several calls; other lengths.
CUTS = (3, 1, 1, 1, 1, 1, 8, 1, 1, 8, 8, 5, 20, 1, 1, 5, 5, 5, 1, 1, 1, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Small:
    """A bundle with engines of the stand-in.

    Attributes:
        made: of what.
        path: the bundle.
    """

    made: Exported
    path: Path

    def ids(self, cuts: Sequence[int] = CUTS, batch_size: int = B, seed: int = 0) -> list[np.ndarray]:
        """Tokens for each feed."""
        ids = random_ids(self.made.config, batch_size, sum(cuts), seed)
        return np.split(ids, np.cumsum(cuts)[:-1], axis=1)

    def expected(self, cuts: Sequence[int] = CUTS, batch_size: int = B, seed: int = 0) -> list[np.ndarray]:
        """What the judge answers."""
        return _judged(self.made.judge, self, tuple(cuts), batch_size, seed)


@functools.cache
def _judged(judge: Engine, small: Small, cuts: tuple[int, ...], batch_size: int, seed: int) -> list[np.ndarray]:
    session = judge.session(batch_size)
    return [session.feed(part) for part in small.ids(cuts, batch_size, seed)]


SmallFixture = Callable[[str], Small]


@pytest.fixture(scope="session")
def small(exported: ExportFixture, tmp_path_factory: pytest.TempPathFactory) -> SmallFixture:
    """small("ring"), small("kv") or small("hidden"), the last with one graph for all lengths."""

    @functools.cache
    def get(layout: str) -> Small:
        if layout == "ring":
            made = exported_ring(exported, head=RING_HEADS)
        elif layout == "kv":
            made = exported("stepping", "kv", (1, 8))
        else:
            made = exported("sliding", "hidden", ("1-8",))
        return Small(made, with_engines(made.path, tmp_path_factory.mktemp("small") / "bundle").path)

    return get


def fed(session: Session, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Answers on the host."""
    return [session.feed(part) for part in parts]


def fed_there(gpu: Gpu, session: Session, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Tokens and answers stay on the device: nobody waits before the end."""
    width = session.info.config.vocab_size
    ids = [Array(gpu, part) for part in parts]
    answers = [Array(gpu, np.zeros((*part.shape, width), np.float32)) for part in parts]
    for part, out in zip(ids, answers, strict=True):
        session.feed(part, out=out)
    done(gpu)
    return [out.numpy() for out in answers]


def answered_there(gpu: Gpu, session: Session, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Tokens are the host's, answers stay on the device."""
    width = session.info.config.vocab_size
    answers = [Array(gpu, np.zeros((*part.shape, width), np.float32)) for part in parts]
    for part, out in zip(parts, answers, strict=True):
        session.feed(part, out=out)
    done(gpu)
    return [out.numpy() for out in answers]


def done(gpu: Gpu) -> None:
    """Wait for all work, as who reads answers there does."""
    code, *_ = gpu.cudart.cudaDeviceSynchronize()
    assert code == gpu.cudart.cudaError_t.cudaSuccess, gpu.reasons


def agree(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Equal answers at every feed."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, atol=EXACT, rtol=0, err_msg=f"feed {i}")


def launchers(session: Session) -> list[Launcher]:
    """What captures the calls of a session, one for each graph that was called."""
    streams = session._streams
    assert isinstance(streams, DeviceRing | DeviceTurns)
    return [bound.launcher for bound in streams.graphs._graphs.values()]


def none_gave_up(session: Session) -> None:
    """Calls of every graph are still captured."""
    reasons = [launcher.why_not for launcher in launchers(session) if launcher.why_not]
    assert not reasons, reasons
