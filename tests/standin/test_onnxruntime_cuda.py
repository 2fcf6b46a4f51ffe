"""Backend `onnxruntime-cuda` on the stand-in: the judge's numbers, captured calls, and what is said when it fails."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundles import one_line
from tests.helpers import random_ids
from tests.runtime.test_ring_sessions import Model, drive
from tests.standin.arrays import CudaInterface
from tests.standin.drives import B, SmallFixture, agree, answered_there, done, fed, fed_there
from tests.standin.gpu import Gpu
from tests.standin.machine import Machine
from tests.standin.ort import Onnxruntime
from txl_export import Engine, Session
from txl_export.backends import onnxruntime_cuda
from txl_export.errors import BundleError, DeviceError, EnvironmentMismatch

NAME = "onnxruntime-cuda"
each_layout = pytest.mark.parametrize("layout", ["ring", "kv", "hidden"])


@pytest.fixture
def ort(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Onnxruntime:
    """The stand-in's module, installed."""
    made = Onnxruntime(gpu)
    made.install(monkeypatch)
    return made


def session_of(made: Any) -> Session:
    return Engine.load(made.path, NAME).session(B)


@each_layout
@pytest.mark.parametrize("order", ["late", "early"])
def test_the_judges_numbers(ort: Onnxruntime, small: SmallFixture, layout: str, order: str) -> None:
    made = small(layout)
    ort.gpu.queues.order = order
    for how in (
        lambda s, p: fed(s, p),
        lambda s, p: fed_there(ort.gpu, s, p),
        lambda s, p: answered_there(ort.gpu, s, p),
    ):
        agree(how(session_of(made), made.ids()), made.expected())
    assert not ort.gpu.reasons


def test_everything_that_happens_to_a_ring(ort: Onnxruntime, small: SmallFixture, tmp_path: Path) -> None:
    made, rng = small("ring"), np.random.default_rng(2)
    steps: list[Any] = []
    for _ in range(10):
        steps += [("feed", [int(rng.integers(0, 14)) + 1, int(rng.integers(0, 14)), 3]), ("feed", [1, 1, 1])]
        steps += [("rewind", (int(rng.integers(0, 4)), {0, 2})), ("reorder", rng.integers(0, 3, 3).tolist())]
        steps += [("fail", (int(rng.integers(1, 4)), True)), ("fork", None), ("feed", [1, 1, 1])]
    steps += [("reset", {1}), ("restore", None), ("feed", [9, 9, 9])]
    model = Model(Engine.load(made.path, NAME), made.made.checkpoint)
    drive(model, 12, steps, tmp_path, seed=5)
    drive(model, 5, steps[:20], tmp_path, seed=6)


@pytest.mark.parametrize("layout", ["kv", "hidden"])
def test_streams_that_are_reset_reordered_copied_and_saved(
    ort: Onnxruntime, small: SmallFixture, layout: str, tmp_path: Path
) -> None:
    made = small(layout)
    engines = Engine.load(made.path, NAME), made.made.judge
    sessions, parts = [e.session(B) for e in engines], made.ids()
    for i, part in enumerate(parts):
        if i % 4 == 1:
            for s in sessions:
                s.reset([i % B])
        if i % 4 == 2:
            for s in sessions:
                s.reorder([1, 0])
        if i % 4 == 3:
            sessions = [s.fork() for s in sessions]
        if i % 7 == 6:
            sessions[0].save(tmp_path / "s")
            sessions[0] = engines[0].restore(tmp_path / "s")
        agree([sessions[0].feed(part)], [sessions[1].feed(part)])


@each_layout
def test_sessions_of_one_model(ort: Onnxruntime, small: SmallFixture, layout: str) -> None:
    """None launches what another captured: each kind of calls has a number of its own."""
    made = small(layout)
    engine = Engine.load(made.path, NAME)
    sessions, tokens = [engine.session(B) for _ in range(3)], [made.ids(seed=i) for i in range(3)]
    found = [[s.feed(t[n]) for s, t in zip(sessions, tokens, strict=True)] for n in range(len(tokens[0]))]
    for i in range(3):
        agree([row[i] for row in found], made.expected(seed=i))


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_numbers_that_kinds_of_calls_share_are_noticed(
    ort: Onnxruntime, small: SmallFixture, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: what was captured for one session, or one way the memory lies, is run for another."""
    monkeypatch.setattr(onnxruntime_cuda.OnnxRuntimeCuda, "number", lambda self, graph: 1)
    with pytest.raises((AssertionError, BundleError), match=r"Not equal to tolerance|does not write its memory"):
        test_sessions_of_one_model(ort, small, layout)


@pytest.mark.parametrize("layout, kinds", [("ring", 1), ("kv", 2), ("hidden", 0)])
def test_what_is_captured_and_how_often_anything_waits(
    ort: Onnxruntime, small: SmallFixture, layout: str, kinds: int
) -> None:
    """Calls of one length are captured when first seen; where tokens and answers are there nothing waits."""
    m, made = Machine(ort.gpu), small(layout)
    session = session_of(made)
    ids, width = CudaInterface(ort.gpu, np.ones((B, 1), np.int64), m.stream), made.made.config.vocab_size
    out = CudaInterface(ort.gpu, np.zeros((B, 1, width), np.float32), m.stream)
    for token in random_ids(made.made.config, B, 14).T:
        session.feed(token[:, None])
    ort.gpu.calls.clear()
    for _ in range(20):
        session.feed(ids, out=out)
    done(ort.gpu)
    assert ort.gpu.calls["onnxruntime replays"] == (20 - kinds if kinds else 0)
    assert ort.gpu.calls["provider run"] == 20 + kinds
    assert not ort.gpu.calls["onnxruntime waits"] and not ort.gpu.calls["cudaStreamSynchronize"]


def test_numbers_run_out_and_calls_are_run_as_they_are(
    ort: Onnxruntime, small: SmallFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_cuda, "MOST_NUMBERED", 2)
    made = small("kv")
    engine = Engine.load(made.path, NAME)
    for _ in range(2):
        agree(fed(engine.session(B), made.ids()), made.expected())
    assert {n for s in engine.model._sessions.values() for n in s._captured} <= {1, 2}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["run_with_iobinding", "cudaMemcpyAsync", "cudaStreamSynchronize"])
@pytest.mark.parametrize("nth", [1, 2, 5])
@each_layout
def test_a_call_that_fails(ort: Onnxruntime, small: SmallFixture, layout: str, name: str, nth: int) -> None:
    made = small(layout)
    session, parts = session_of(made), made.ids()
    found = fed(session, parts[:6])
    ort.gpu.fail(name, nth)
    refused = 0
    for part in parts[6:]:
        before = session.positions.tolist()
        try:
            found.append(session.feed(part))
        except DeviceError as e:
            refused += 1
            assert e.exit_code == 3 and "GPU" in one_line(e) and session.positions.tolist() == before
            found.append(session.feed(part))
    assert refused == 1
    agree(found, made.expected())


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_a_thread_that_comes_while_another_captures(ort: Onnxruntime, small: SmallFixture, layout: str) -> None:
    """Its copies do not end up in the other's graph: it waits until the capture is over."""
    made = small(layout)
    engine = Engine.load(made.path, NAME)
    first, second = engine.session(B), engine.session(B)
    found: list[np.ndarray] = []
    threads: list[threading.Thread] = []

    def come() -> None:
        ort.while_capturing = lambda: None
        threads.append(threading.Thread(target=lambda: found.extend(fed(second, made.ids(seed=1)))))
        threads[0].start()
        threads[0].join(0.05)  # which it would have finished or failed in

    ort.while_capturing = come
    agree(fed(first, made.ids()), made.expected())
    threads[0].join()
    agree(found, made.expected(seed=1))
    assert not ort.gpu.reasons


# What is used, and why not


def test_a_provider_that_falls_back_is_refused(ort: Onnxruntime, small: SmallFixture) -> None:
    ort.falls_back = True
    with pytest.raises(EnvironmentMismatch, match="could not load its CUDA provider and would run on the host") as e:
        Engine.load(small("ring").path, NAME)
    assert e.value.exit_code == 3 and "doctor" in one_line(e.value)


def test_a_graph_that_cannot_be_loaded(ort: Onnxruntime, small: SmallFixture) -> None:
    ort.loading = RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory\nGPU=0")
    with pytest.raises(DeviceError, match=r"cannot be loaded on the GPU .*out of memory.*use --backend onnxruntime"):
        Engine.load(small("ring").path, NAME)


def test_the_fastest_that_works_is_taken_and_why_not_those_before_it(
    ort: Onnxruntime, small: SmallFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small("ring")
    assert Engine.load(made.path).choice == "tensorrt"
    ort.gpu.fail("deserialize_cuda_engine")
    engine = Engine.load(made.path)
    assert engine.backend == NAME
    assert engine.choice.startswith(f"{NAME}; not tensorrt (") and "told to fail" in engine.choice
    assert "not tensorrt-rtx (no engines: txl-export build" in engine.choice
    agree(fed(engine.session(B), made.ids()), made.expected())

    ort.gpu.fail("deserialize_cuda_engine")
    ort.falls_back = True
    engine = Engine.load(made.path, threads=1)
    assert engine.backend == "onnxruntime" and f"not {NAME} (" in engine.choice and "CUDA provider" in engine.choice
    agree(fed(engine.session(B), made.ids()), made.expected())

    ort.get_available_providers = lambda: ["CPUExecutionProvider"]  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    engine = Engine.load(made.path, threads=1)
    assert engine.backend == "onnxruntime" and "onnxruntime without CUDA: pip uninstall" in engine.choice
    assert "package 'tensorrt' is not installed" in engine.choice
