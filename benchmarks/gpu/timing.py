"""Samples of calls: wall time from numpy to numpy, and time on the device between events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Turn(NamedTuple):
    """How long calls are timed: until the time is up, `least` to `most` of them, after `warm` that don't count."""

    seconds: float = 0.25
    least: int = 5
    most: int = 200
    warm: int = 5  # the second call of a kind is captured


DRY = Turn(0.0, 2, 2, 3)


def wall(call: Callable[[], object], turn: Turn) -> list[float]:
    """Milliseconds of calls, one after the other."""
    for _ in range(turn.warm):
        call()
    samples: list[float] = []
    end = time.perf_counter() + turn.seconds
    while len(samples) < turn.least or (len(samples) < turn.most and time.perf_counter() < end):
        started = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - started) / 1e6)
    return samples


def between_events(
    call: Callable[[], object], mark: Callable[[], object], wait: Callable[[], None], turn: Turn, calls: int
) -> list[tuple[object, object]]:
    """Marks before and after each of `calls` calls that wait for nothing; all have been reached at the end.

    Args:
        call: queues one call.
        mark: queues a timed event and returns it.
        wait: waits until all has happened.
        turn: its warm calls go before.
        calls: how many.
    """
    for _ in range(turn.warm):
        call()
    wait()
    pairs = []
    for _ in range(calls):
        before = mark()
        call()
        pairs.append((before, mark()))
    wait()
    return pairs


def calls_in(turn: Turn, ms: float) -> int:
    """How many calls of about that time fit a turn."""
    return min(turn.most, max(turn.least, int(1000 * turn.seconds / max(ms, 1e-3))))
