"""A benchmark's worker: one cell in a process of its own, asked over stdin, answering over stdout, a JSON line each.

    {"do": "load", "source": PATH, "origin": NAME|null, "overrides": {...}, "backend": NAME, "mem_len": M,
     "segment_len": L, "batch_size": B, "threads": T, "head": NAME}  ->  {"filled": tokens in the memory}
    {"do": "round", "seconds": S, "least": N, "most": N}             ->  {"samples_ms": [...]}
    end of input                                                     ->  the worker ends

An error made on purpose is answered with {"error": its class, "message": its line}; any other ends the
worker, its traceback on stderr. Between answers the worker blocks on stdin and its threads sleep.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.benchmarking.table import EAGER
from txl_export.bundle import MANIFEST, Bundle
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.errors import TxlError
from txl_export.runtime.engine import Engine

WARM_CALLS = 3  # the first calls allocate and load what they need
UNTIMED_CALLS = 2  # per round: the other worker had the caches, and the threads here slept
FILL_SECONDS = 5.0


class Job:
    """A loaded cell: streams on an engine, and the call that is timed."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Load the cell of a "load" message; raises TxlError."""
        self.L, self.B, self.head = spec["segment_len"], spec["batch_size"], spec["head"]
        source = _open(spec)
        self.engine = Engine.load(source, spec["backend"], spec["mem_len"], threads=spec["threads"])
        self.info, self.session = self.engine.info, self.engine.session(self.B)
        self.rng = np.random.default_rng(0)
        self.out: np.ndarray | None = None
        # One buffer for all answers, so that no sample pays for fresh pages (head `top_k` takes none).
        answer = self._run(self._ids(self.L))
        self.out = answer if isinstance(answer, np.ndarray) else None

    def fill(self) -> int:
        """Bring the memory to its full length and the caches and threads to their usual state.

        Returns:
            Tokens in the memory.
        """
        mem_len, started = self.info.mem_len, time.monotonic()
        length, head = self._filler()
        # Eager's tensors grow with the memory, so it must be full. A graph's have M rows from the start and
        # cost the same whatever counts in them: there a slow fill may stop early.
        while int(self.session.positions.min()) < mem_len and (
            self._eager or time.monotonic() - started < FILL_SECONDS
        ):
            ids = self._ids(length)
            self.session.feed(ids, length, head, self._targets(ids, head))
        for _ in range(WARM_CALLS):
            self._run(self._ids(self.L))
        settle()
        return min(mem_len, int(self.session.positions.min()))

    @property
    def _eager(self) -> bool:
        return self.engine.backend == EAGER

    def _filler(self) -> tuple[int, str]:
        """Tokens per call, as many as is quick, and the head to fill with."""
        config, mem_len = self.info.config, self.info.mem_len
        if self._eager:  # bounded by the attention scores, [B, H, length, M + length]
            return max(1, min(mem_len, 512, (1 << 25) // (self.B * config.n_head * (mem_len + 1)))), "features@last"
        # The widest graph, bounded by what the head returns, [B, length, V].
        limit = max(self.L, (1 << 26) // (self.B * config.vocab_size))
        return max(min(s.hi, limit) for s in self.info.segments if s.lo <= limit), self.head

    def time_round(self, seconds: float, least: int, most: int) -> list[float]:
        """Milliseconds of calls until the time is up, of `least` to `most` of them."""
        for _ in range(UNTIMED_CALLS):
            self._run(self._ids(self.L))
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < least or (len(samples) < most and time.perf_counter() < end):
            ids = self._ids(self.L)
            started = time.perf_counter_ns()
            self._run(ids)
            samples.append((time.perf_counter_ns() - started) / 1e6)
        settle()
        return samples

    def _run(self, ids: np.ndarray) -> Any:
        return self.session.feed(ids, self.L, self.head, self._targets(ids, self.head), self.out)

    def _targets(self, ids: np.ndarray, head: str) -> np.ndarray | None:
        if not self.info.head(head).takes_targets:
            return None
        return ids[:, -1:] if self.info.head(head).last_only else ids

    def _ids(self, length: int) -> np.ndarray:
        return self.rng.integers(0, self.info.config.vocab_size, (self.B, length))


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


def _open(spec: dict[str, Any]) -> Bundle | Checkpoint:
    path = Path(spec["source"])
    if (path / MANIFEST).is_file():
        return Bundle.open(path, check_files=False)  # whoever asks has just checked or written it
    return load_checkpoint(path, spec["origin"], spec["overrides"])


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    job: Job | None = None
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        try:
            if message.pop("do") == "load":
                job = Job(message)
                answer: dict[str, Any] = {"filled": job.fill()}
            else:
                assert job is not None, "a round was asked for before anything was loaded"
                answer = {"samples_ms": job.time_round(**message)}
        except TxlError as e:
            answer = {"error": type(e).__name__, "message": str(e)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
