"""The measurements, one function each: rows of a table, measured in a process of their own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import txl_export
from benchmarks.runtime.base import (
    MEM_LENS,
    SEGMENT_LENS,
    Row,
    alternate,
    bundle,
    feeding,
    full_session,
    least_bytes,
    least_flops,
    spread,
)
from benchmarks.shapes import SHIPPED
from txl_export.backends.onnxruntime import _bind_input, _bind_output
from txl_export.benchmarking.limits import Limits, measure
from txl_export.benchmarking.machine import physical_cores
from txl_export.checkpoints import Checkpoint
from txl_export.runtime import Engine, Session

THREADS = physical_cores()
ROUNDS = 7


def _engine(precision: str = "fp32") -> Engine:
    return Engine.load(bundle(precision), "onnxruntime", threads=THREADS)


def loop() -> Iterator[Row]:
    """What `Session.feed` adds to the call of ONNX Runtime that it makes: two sessions of the same state, in turn."""
    engine = _engine()
    for mem_len, length in ((128, 1), (1600, 1), (1600, 64)):
        session = full_session(engine, 1, mem_len)
        feed = feeding(session, length)
        bare = _bare_call(full_session(engine, 1, mem_len), length)
        found = alternate({"bare": bare, "feed": feed}, 15, 20 if length == 1 else 4)
        apart = [1000 * (f - b) for f, b in zip(found["feed"], found["bare"], strict=True)]
        yield {
            "M": mem_len,
            "L": length,
            "call, ms": spread(found["bare"]),
            "feed, ms": spread(found["feed"]),
            "feed beyond the call, µs": spread(apart, 0),
        }
    yield {"M": "-", "L": 1, "call, ms": "-", "feed, ms": "-", "feed beyond the call, µs": f"{_own_time():.0f} (alone)"}


def _bare_call(session: Session, length: int) -> Callable[[], object]:
    """The runtime's own call on what a feed has bound, tokens and answers in arrays that stay."""
    feeding(session, length)
    [(runs, binding)] = session._streams._bindings.values()  # type: ignore[attr-defined]
    ids = np.ones((1, length), np.int64)
    answers = np.empty((1, length, session.info.config.vocab_size), np.float32)
    _bind_input(binding, "input_ids", ids)
    _bind_output(binding, "log_probs", answers)

    def call() -> object:
        runs.run_with_iobinding(binding)
        return session, ids, answers  # which must live as long as what is bound to them

    return call


def _own_time() -> float:
    """Microseconds of a feed whose graph takes no time: the loop's own work, free of the noise of a call."""
    session = full_session(_engine(), 1, 128)
    feed = feeding(session, 1)
    name, (runs, binding) = next(iter(session._streams._bindings.items()))  # type: ignore[attr-defined]

    class Nothing:
        def run_with_iobinding(self, _: object) -> None:
            """Take no time."""

    del runs
    session._streams._bindings[name] = (Nothing(), binding)  # type: ignore[attr-defined]
    return 1000 * median(alternate({"feed": feed}, 20, 200)["feed"])


def memories() -> Iterator[Row]:
    """One token of one stream over the memory length, all from one bundle."""
    limits, engine = Limits.from_dict(measure(THREADS)), _engine()
    found = alternate({str(m): feeding(full_session(engine, 1, m), 1) for m in MEM_LENS}, ROUNDS, 20)
    first = median(found[str(MEM_LENS[0])])
    for m in MEM_LENS:
        nbytes, times = least_bytes(1, m), found[str(m)]
        limit = 1000 * nbytes / limits.bandwidth(nbytes)
        yield {
            "M": m,
            "call, ms": spread(times),
            "bytes, MB": f"{nbytes / 1e6:.0f}",
            "time, of the first": f"{median(times) / first:.2f}",
            "bytes, of the first": f"{nbytes / least_bytes(1, MEM_LENS[0]):.2f}",
            "limit, ms": f"{limit:.2f}",
            "call / limit": f"{median(times) / limit:.2f}",
        }


def batches() -> Iterator[Row]:
    """One token of B streams, at positions of their own."""
    limits, engine = Limits.from_dict(measure(THREADS)), _engine()
    for mem_len in (128, 1600):
        sizes = (1, 8, 32)
        found = alternate({str(B): feeding(full_session(engine, B, mem_len), 1) for B in sizes}, 5, 6)
        one = 1 / median(found["1"])
        for B in sizes:
            nbytes = least_bytes(B, mem_len)
            limit = 1000 * max(nbytes / limits.bandwidth(nbytes), least_flops(B, mem_len) / limits.flop_rate)
            rate = B / median(found[str(B)])
            yield {
                "M": mem_len,
                "B": B,
                "call, ms": spread(found[str(B)], 1),
                "tokens/s": f"{1000 * rate:.0f}",
                "of B = 1": f"{rate / one:.2f}",
                "limit, ms": f"{limit:.1f}",
                "call / limit": f"{median(found[str(B)]) / limit:.2f}",
            }


def int8() -> Iterator[Row]:
    """Weights of 8 bits against fp32, both with memories in fp32, two engines of one process in turn."""
    engines = {precision: _engine(precision) for precision in ("fp32", "int8")}
    for length, B, mem_len in ((1, 1, 128), (1, 1, 640), (1, 1, 1600), (64, 1, 640), (1, 8, 640)):
        ways = {name: feeding(full_session(engine, B, mem_len), length) for name, engine in engines.items()}
        found = alternate(ways, ROUNDS, 20 if length == B == 1 else 4)
        ratios = [a / b for a, b in zip(found["fp32"], found["int8"], strict=True)]
        yield {
            "L": length,
            "B": B,
            "M": mem_len,
            "fp32, ms": spread(found["fp32"]),
            "int8, ms": spread(found["int8"]),
            "times as fast": spread(ratios),
        }


def calls() -> Iterator[Row]:
    """Segments of n tokens: the calls that are chosen, against those of the next smaller graphs alone."""
    session = full_session(_engine(), 1, 1600)
    streams: Any = session._streams
    planned, whole = streams._costs, dict(streams._costs.seconds)

    def only(lengths: tuple[int, ...], feed: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            streams._costs = type(planned)({n: whole[n] for n in lengths})
            feed()
            streams._costs = planned

        return run

    for n in (5, 8, 20, 50, 64, 100, 128):
        feed = feeding(session, n)
        ways = {
            "chosen": feed,
            "1 only": only((1,), feed),
            "1, 8": only((1, 8), feed),
            "1, 8, 64": only((1, 8, 64), feed),
        }
        if n > 64:
            del ways["1 only"]
        found = alternate(ways, 3, 2)
        plan = [c.length for c in _planned(session, n)]
        yield {"tokens": n, "calls": " + ".join(map(str, plan))} | {
            f"{name}, ms": spread(found[name], 0) if name in found else "-"
            for name in ("chosen", "1 only", "1, 8", "1, 8, 64")
        }


def _planned(session: Any, n: int) -> Iterator[Any]:
    """The calls of a feed, without running it."""
    streams = session._streams
    for call in streams.plan(np.array([n]), n, False):
        yield call
        streams.ring.positions += call.valid
    streams.ring.positions -= n


def turns() -> Iterator[Row]:
    """Graphs that take turns: threads of the one that was last must not wait on the cores of the next."""
    session = full_session(_engine(), 1, 1600)
    alone = {n: median(alternate({"": feeding(session, n)}, 3, 4)[""]) for n in SEGMENT_LENS}
    found = alternate({str(n): feeding(session, n) for n in SEGMENT_LENS}, 7, 1)
    for n in SEGMENT_LENS:
        yield {"L": n, "alone, ms": f"{alone[n]:.1f}", "in turns, ms": spread(found[str(n)], 1)}


_PROCESS = """
import sys, time
began = time.monotonic()
import numpy as np, txl_export as txl
packed = {"None": None, "True": True, "False": False}[sys.argv[2]]
engine = txl.Engine.load(sys.argv[1], threads=int(sys.argv[3]), packed=packed)
session = engine.session(1, mem_len=640)
loaded = time.monotonic()
session.feed([[1]])
first = time.monotonic()
for n in (8, 64):
    session.feed(np.ones((1, n), int), segment_len=n)
everything = time.monotonic()
import json
kinds = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
held = {k: int(kinds[k + ":"]) * 1024 for k in ("Private_Dirty", "Shared_Clean", "Private_Clean", "Pss")}
print(json.dumps(held | {"loaded": loaded - began, "first": first - began, "all": everything - began,
                         "memory": session._streams.buffer.nbytes}), flush=True)
sys.stdin.read()
"""


def processes() -> Iterator[Row]:
    """Memory that is a process's own after calls of three graphs, with a second process beside it, and start-up."""
    weights = sum(f.stat().st_size for f in Path(bundle()).glob("weights.bin"))
    for packed in (None, True, False):
        both = [_start(packed), _start(packed)]
        told = [json.loads(p.stdout.readline()) for p in both]  # type: ignore[union-attr]
        for p in both:
            p.communicate("")
        nothing = _bare()
        for which, found in zip(("first", "second"), told, strict=True):
            own = found["Private_Dirty"] - found["memory"] - nothing
            yield {
                "packed": {None: "by default", True: "all", False: "none"}[packed],
                "process": which,
                "own memory, MB": f"{own / 1e6:.0f}",
                "of the weights": f"{own / weights:.2f}",
                "Engine.load, s": f"{found['loaded']:.2f}",
                "first token, s": f"{found['first']:.2f}",
                "three graphs, s": f"{found['all']:.2f}",
            }


def _start(packed: bool | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROCESS, str(bundle()), str(packed), str(THREADS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(4)  # so that starts don't share the cores
    return process


def _bare() -> int:
    """Own bytes of a process that imported the packages and nothing else."""
    code = "import numpy, onnxruntime, txl_export; print(open('/proc/self/smaps_rollup').read())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return 1024 * next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Private_Dirty:"))


TOKENS, CHUNK, LONG_MEMORY = 1_000_000, 10_000, 640
FEEDS = (1, 1, 3, 8, 50, 64, 64, 200, 640)  # drawn from


def million() -> Iterator[Row]:
    """A million tokens through one stream of the shipped model in feeds of mixed lengths, M = 640.

    At the end the reference, which has read as many of the last tokens as its last layer depends on, must answer
    the same.
    """
    checkpoint = txl_export.load_checkpoint(SHIPPED["stdlib-bytes"])
    with tempfile.TemporaryDirectory() as folder:
        made = txl_export.export(checkpoint, Path(folder) / "b", mem_len=LONG_MEMORY, segment_lens=(1, 8, 64))
        session = Engine.load(made, threads=THREADS).session(1)
        feeds = list(_feeds(checkpoint))
        times: dict[int, list[tuple[float, int]]] = defaultdict(list)
        held, done = dict[int, int](), 0
        for ids in feeds:
            started = time.perf_counter()
            session.feed(ids)
            times[done // CHUNK].append((time.perf_counter() - started, ids.shape[1]))
            held[done // CHUNK] = _resident()
            done += ids.shape[1]
        apart = _against_reference(checkpoint, session, feeds)
    for what, chunk in ((f"first {CHUNK:,} after the memory wrapped", 1), (f"last {CHUNK:,}", max(times) - 1)):
        seconds, tokens = map(sum, zip(*times[chunk], strict=True))
        yield {
            "tokens": f"{done:,}",
            "feeds": f"{len(feeds):,}",
            "which": what,
            "µs per token": f"{1e6 * seconds / tokens:.1f}",
            "resident, MB": f"{held[chunk] / 1e6:.1f}",
            "from the reference, at the end": f"{apart:.1e}",
        }


def _feeds(checkpoint: Checkpoint) -> Iterator[np.ndarray]:
    """Ids [1, n] of a text over and over, in all TOKENS; every CHUNK of them is fed in the same lengths."""
    rng, lengths = np.random.default_rng(0), list[int]()
    text = np.frombuffer(Path(str(argparse.__file__)).read_bytes(), np.uint8).astype(np.int64)
    text %= checkpoint.config.vocab_size
    while (left := CHUNK - sum(lengths)) > 0:
        lengths.append(min(int(rng.choice(FEEDS)), left))
    for n in lengths * (TOKENS // CHUNK):
        start = int(rng.integers(len(text) - n))
        yield text[None, start : start + n]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _against_reference(checkpoint: Checkpoint, session: Session, feeds: list[np.ndarray]) -> float:
    """The largest difference of log-probabilities over further feeds."""
    judge = Engine.load(checkpoint, "eager", LONG_MEMORY, 64).session(1)
    seen, needed = 0, (checkpoint.config.n_layer + 1) * (LONG_MEMORY + 64)
    last = len(feeds)
    while seen < needed:
        last -= 1
        seen += feeds[last].shape[1]
    for ids in feeds[last:]:
        judge.feed(ids)
    further = [feeds[0], feeds[1], *feeds[100:104]]
    return max(float(np.abs(session.feed(ids) - judge.feed(ids)).max()) for ids in further)


def nodes() -> Iterator[Row]:
    """ONNX Runtime's own profile of its optimised graphs: every kind of node by its shapes, and what reads M rows."""
    import onnxruntime

    for length, B, mem_len in ((1, 1, 1600), (64, 1, 1600), (1, 32, 1600)):
        with tempfile.TemporaryDirectory() as folder:
            made = onnxruntime.SessionOptions

            class Profiled(made):  # type: ignore[misc, valid-type]
                def __init__(self, into: str = folder) -> None:
                    super().__init__()
                    self.enable_profiling, self.profile_file_prefix = True, str(Path(into) / "p")

            onnxruntime.SessionOptions = Profiled
            try:
                engine = _engine()
                session = full_session(engine, B, mem_len)
                feed = feeding(session, length)
                for _ in range(20):
                    feed()
                sessions = engine.model._sessions  # type: ignore[attr-defined]
                runs = next(s for (file, *_), s in sessions.items() if f".L{length}." in file)
                events = json.loads(Path(runs.end_profiling()).read_text())
            finally:
                onnxruntime.SessionOptions = made
        yield from _by_kind(events, f"L = {length}, B = {B}, M = {mem_len}", session._streams.buffer.shape[3])  # type: ignore[attr-defined]


def _by_kind(events: list[dict[str, Any]], what: str, rows: int) -> Iterator[Row]:
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for e in events:
        if e.get("cat") == "Node" and e["name"].endswith("_kernel_time"):
            shapes = [next(iter(s.values())) for s in e["args"].get("input_type_shape", [])]
            taken[e["args"]["op_name"], " ".join("x".join(map(str, s)) for s in shapes)].append(e["dur"])
    times = sum(map(len, (v for (op, _), v in taken.items() if op == "LogSoftmax")))  # one in every call
    shown = 14
    ranked = sorted(taken.items(), key=lambda kv: -median(kv[1]) * len(kv[1]))
    total = sum(median(v) * len(v) / times for _, v in ranked)
    for (op, inputs), durations in ranked[:shown]:
        ms = median(durations) * len(durations) / times / 1000
        yield {
            "call": what,
            "operator": op,
            "inputs": inputs or "-",
            "nodes": round(len(durations) / times),
            "µs each": f"{median(durations):.0f}",
            "ms in all": f"{ms:.2f}",
            "share": f"{100_000 * ms / total:.0f} %",
            "reads S + G rows": "yes" if str(rows) in inputs.replace("x", " ").split() else "",
        }
    rest = sum(median(v) * len(v) / times / 1000 for _, v in ranked[shown:])
    yield {
        "call": what,
        "operator": f"{len(ranked) - shown} other kinds",
        "inputs": "-",
        "nodes": "-",
        "µs each": "-",
        "ms in all": f"{rest:.2f}",
        "share": f"{100_000 * rest / total:.0f} %",
        "reads S + G rows": "",
    }


PARTS: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "loop": ("What a feed costs beyond its call", loop),
    "memories": ("One token over the memory length", memories),
    "batches": ("One token of B streams", batches),
    "int8": ("Weights of 8 bits", int8),
    "calls": ("Which calls run a segment", calls),
    "turns": ("Graphs that take turns", turns),
    "processes": ("Memory of the process, and start-up", processes),
    "million": ("A million tokens through one stream", million),
    "nodes": ("Every node that takes time", nodes),
}
