"""The generic half of a worker: one job in a process of its own, asked over stdin, answering over stdout.

A message and its answer are a line of JSON each:

    {"do": "load", ...}   ->  {"filled": tokens, "load_ms": ms, "first_ms": ms, "memory_bytes": bytes per stream}
    {"do": "round", "seconds": S, "least": N, "most": N}  ->  {"samples_ms": [...]}
    {"do": "end"}         ->  {"peak_rss": bytes, "calls_rss": bytes}

The two are the most memory that the process held ever, and since its model was loaded. After "end" the worker ends, as
it does at the end of its input.

What "load" holds beside is the job's own business. An error made on purpose is answered with {"error": its
class, "message": its line}; any other ends the worker, its traceback on stderr. Between answers the worker
blocks on stdin and its threads sleep.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from txl_export.errors import TxlError

# The environment variable in which the parent says when it started the process, by `time.monotonic`.
STARTED = "TXL_BENCH_STARTED"

WARM_CALLS = 3  # the first calls allocate and load what they need
UNTIMED_CALLS = 2  # per round: another worker had the caches, and the threads here slept

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_imported = time.monotonic()


class Job(Protocol):
    """A loaded model with the memory of B streams; one call is timed at a time.

    Attributes:
        memory_bytes: bytes of memory per stream, when it is full.
    """

    memory_bytes: int

    def prepare(self) -> Any:
        """What one call of L tokens and B streams takes, made fresh; not timed."""

    def call(self, prepared: Any) -> Any:
        """The call that is timed: from token ids to an answer in the process's own memory."""

    def fill(self) -> int:
        """Bring every stream's memory to M tokens; returns how many it holds."""


def serve(make_job: Callable[[dict[str, Any]], Job]) -> None:
    """Answer until told to end.

    Args:
        make_job: makes the job of a "load" message (without its "do"). It imports what it needs itself, so
            that the time to load counts the imports; raises TxlError for what should be told in a line.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    server = _Server(make_job)
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        do = message.pop("do")
        try:
            answer = _VERBS[do](server, **message)
        except TxlError as e:
            answer = {"error": type(e).__name__, "message": str(e)}
        print(json.dumps(answer), file=answers, flush=True)
        if do == "end":
            return


class _Server:
    """What is loaded, and how it is timed."""

    def __init__(self, make_job: Callable[[dict[str, Any]], Job]) -> None:
        self._make_job = make_job
        self._peak = 0

    def load(self, **spec: Any) -> dict[str, Any]:
        """Load, answer once, then fill the memory and come to the usual state."""
        began = time.monotonic()
        self._job = self._make_job(spec)
        loaded = time.monotonic()
        self._job.call(self._job.prepare())
        answered = time.monotonic()
        filled = self._fill()
        self._call(WARM_CALLS)
        settle()
        return {
            "filled": filled,
            "load_ms": 1000 * (loaded - began),
            "first_ms": 1000 * (answered - float(os.environ.get(STARTED, _imported))),
            "memory_bytes": self._job.memory_bytes,
        }

    def _fill(self) -> int:
        """Fill without counting what only filling needs among the process's memory, where the system allows."""
        self._peak = peak_rss()
        filled = self._job.fill()
        with contextlib.suppress(OSError):  # no Linux
            _CLEAR.write_text("5")
        return filled

    def round(self, seconds: float, least: int, most: int) -> dict[str, Any]:
        """Milliseconds of calls until the time is up, of `least` to `most` of them."""
        self._call(UNTIMED_CALLS)
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < least or (len(samples) < most and time.perf_counter() < end):
            prepared = self._job.prepare()
            started = time.perf_counter_ns()
            self._job.call(prepared)
            samples.append((time.perf_counter_ns() - started) / 1e6)
        settle()
        return {"samples_ms": samples}

    def _call(self, times: int) -> None:
        for _ in range(times):
            self._job.call(self._job.prepare())

    def end(self) -> dict[str, Any]:
        """The most memory that the process held, ever and since it was loaded."""
        since = peak_rss()
        return {"peak_rss": max(self._peak, since), "calls_rss": since}


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {"load": _Server.load, "round": _Server.round, "end": _Server.end}


def peak_rss() -> int:
    """The largest resident memory of this process so far, bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ImportError):  # Windows
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return 0


def settle(window: float = 0.01, limit: float = 1.0) -> None:
    """Wait until this process's threads sleep, so that the next worker has the cores for itself.

    ONNX Runtime's threads spin for about 50 ms after a call and OpenMP's for up to 200 (libomp). Both are
    left as users have them, since spinning is part of the latency of calls in a row.
    """
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(window)
        if time.process_time() - before < window / 10:
            return
