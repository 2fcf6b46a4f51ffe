"""Sessions on the stand-in for a GPU: several at once, no room, what is launched, files, sizes and the command line."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.bundles import one_line
from tests.helpers import random_ids
from tests.standin.drives import CUTS, B, SmallFixture, agree, answered_there, fed, launchers, none_gave_up
from tests.standin.gpu import Gpu
from tests.standin.plans import with_engines
from txl_export import Engine, Session
from txl_export.checkpoints import native
from txl_export.cli import main
from txl_export.errors import DeviceError, InputError

LAYOUTS = ("ring", "kv", "hidden")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


# Several at once


@each_layout
def test_sessions_that_take_turns_equal_each_alone(gpu: Gpu, small: SmallFixture, layout: str) -> None:
    made, engine = small(layout), Engine.load(small(layout).path, "tensorrt")
    sessions = [engine.session(B) for _ in range(3)]
    tokens = [made.ids(seed=i) for i in range(3)]
    found: list[list[np.ndarray]] = [[], [], []]
    for n in range(len(CUTS)):
        for i, session in enumerate(sessions):
            if n >= i:  # they stand at different places, and forget a stream at different times
                found[i].append(session.feed(tokens[i][n - i]))
    for i, answers in enumerate(found):
        agree(answers, made.expected(seed=i)[: len(answers)])


@each_layout
def test_sessions_of_two_threads_equal_each_alone(gpu: Gpu, small: SmallFixture, layout: str) -> None:
    made, engine = small(layout), Engine.load(small(layout).path, "tensorrt")
    found: dict[int, list[np.ndarray]] = {}
    captured: list[bool] = []

    def work(i: int) -> None:
        session = engine.session(B)
        found[i] = fed(session, made.ids(seed=i))
        captured.extend(launcher.why_not is None for launcher in launchers(session))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(2):
        agree(found[i], made.expected(seed=i))
    assert captured and all(captured)


# Room


@each_layout
def test_a_session_that_does_not_fit_says_so_and_the_others_go_on(gpu: Gpu, small: SmallFixture, layout: str) -> None:
    made = small(layout)
    engine = Engine.load(made.path, "tensorrt")
    session, parts = engine.session(B), made.ids()
    found = fed(session, parts[:12])
    before, pinned = gpu.live_bytes, gpu.pinned_bytes
    gpu.capacity = before + 8000
    with pytest.raises(DeviceError) as e:
        engine.session(8)
    assert e.value.exit_code == 3 and "for 8 streams needs" in one_line(e.value)
    assert f"of {gpu.capacity:,} are free" in str(e.value)
    assert (gpu.live_bytes, gpu.pinned_bytes) == (before, pinned)
    agree([*found, *fed(session, parts[12:])], made.expected())


@each_layout
def test_wherever_room_ends_everything_is_given_back(gpu: Gpu, small: SmallFixture, layout: str) -> None:
    """Allowed one allocation, then two, and so on, until a session has run: what was taken goes back each time."""
    made = small(layout)
    engine = Engine.load(made.path, "tensorrt")
    before, pinned, failures = gpu.live_bytes, gpu.pinned_bytes, 0
    no_room = gpu.cudart.cudaError_t.cudaErrorMemoryAllocation
    for name in ("cudaMalloc", "cudaMallocHost"):
        for nth in range(1, 100):
            gpu.fail(name, nth, no_room)
            calls = gpu.calls[name]
            run: list[np.ndarray] = []
            try:
                run = fed(engine.session(B), made.ids())
            except DeviceError as e:
                failures += 1
                assert one_line(e) and e.exit_code == 3
            assert (gpu.live_bytes, gpu.pinned_bytes) == (before, pinned), (name, nth)
            if run:
                agree(run, made.expected())
                assert gpu.calls[name] - calls == nth - 1
                gpu._faults.clear()
                break
    assert failures > 5


@each_layout
def test_a_session_without_room_for_its_first_call_goes_on_once_there_is(
    gpu: Gpu, small: SmallFixture, layout: str
) -> None:
    made = small(layout)
    engine = Engine.load(made.path, "tensorrt")
    other, session, parts = engine.session(1), engine.session(B), made.ids()
    capacity, gpu.capacity = gpu.capacity, gpu.live_bytes
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"what a session computes in between needs .* are free"):
            session.feed(parts[0])
    del other
    gpu.capacity = capacity
    agree(fed(session, parts), made.expected())


@each_layout
def test_what_a_dropped_session_had_is_given_back(gpu: Gpu, small: SmallFixture, layout: str) -> None:
    """At once: a collector of cycles might run while another session captures."""
    made = small(layout)
    engine = Engine.load(made.path, "tensorrt")
    assert (gpu.live_bytes, gpu.pinned_bytes, len(gpu.cudart.events)) == (0, 0, 0)
    session = engine.session(B)
    fed(session, made.ids())
    other = session.fork()
    other.feed(made.ids((5,))[0])
    other.reset()
    assert gpu.live_bytes and gpu.pinned_bytes and gpu.cudart.executables
    del session, other
    assert (gpu.live_bytes, gpu.pinned_bytes, len(gpu.cudart.events)) == (0, 0, 0)
    assert not gpu.cudart.executables and not gpu.cudart.graphs
    assert [s.handle for s in gpu.queues.streams] == [0, 2]


def test_a_session_that_is_dropped_while_its_work_waits(gpu: Gpu, small: SmallFixture) -> None:
    made = small("ring")
    engine = Engine.load(made.path, "tensorrt")
    answers = answered_there(gpu, engine.session(B), made.ids())
    agree(answers, made.expected())
    assert gpu.live_bytes == 0 and not gpu.reasons


# What is launched


def decode(session: Session, n: int = 30) -> None:
    for token in random_ids(session.info.config, session.batch_size, n).T:
        session.feed(token[:, None])


def counts(gpu: Gpu) -> dict[str, int]:
    names = {
        "direct and captured": "execute_async_v3",
        "captured": "cudaGraphInstantiate",
        "launched": "cudaGraphLaunch",
    }
    return {word: gpu.calls[name] for word, name in names.items()} | {"run": gpu.calls["engine run"]}


@pytest.mark.parametrize("layout, kinds", [("ring", 1), ("kv", 2), ("hidden", 2)])
def test_decoding_launches_one_graph_for_each_way_the_memory_lies(
    gpu: Gpu, small: SmallFixture, layout: str, kinds: int
) -> None:
    """Each kind of call is put there twice, captured behind the second, and launched from then on."""
    session = Engine.load(small(layout).path, "tensorrt").session(B)
    gpu.calls.clear()
    decode(session)
    assert counts(gpu) == {"direct and captured": 3 * kinds, "captured": kinds, "launched": 30 - 2 * kinds, "run": 30}
    none_gave_up(session)


def test_decoding_copies_once_each_way_and_waits_once(gpu: Gpu, small: SmallFixture) -> None:
    for layout in LAYOUTS:
        session = Engine.load(small(layout).path, "tensorrt").session(B)
        decode(session)
        gpu.calls.clear()
        decode(session)
        once = (
            "cudaMemcpyAsync",
            "cudaGraphLaunch",
            "cudaStreamSynchronize",
            "cudaEventRecord",
            "cudaEventSynchronize",
        )
        expected = dict.fromkeys(once, 30) | {"cudaMemcpyAsync": 60, "engine run": 30}
        assert {n: c for n, c in gpu.calls.items() if c} == expected, layout


@each_layout
@pytest.mark.parametrize("name", ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"])
def test_where_nothing_can_be_captured_calls_are_put_there_directly(
    gpu: Gpu, small: SmallFixture, layout: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(layout)
    session = Engine.load(made.path, "tensorrt").session(B)
    no = gpu.cudart.cudaError_t.cudaErrorStreamCaptureUnsupported
    for nth in range(1, 9):
        gpu.fail(name, nth, no)
    agree(fed(session, made.ids()), made.expected())
    assert all(name in str(launcher.why_not) for launcher in launchers(session) if launcher._captured)
    assert not gpu.calls["cudaGraphLaunch"] and not gpu.cudart.executables
    before = gpu.calls[name]
    decode(session, 5)
    assert gpu.calls[name] <= before + 1  # of a graph it is asked once


def test_a_model_that_is_told_not_to_capture(gpu: Gpu, small: SmallFixture) -> None:
    engine = Engine.load(small("ring").path, "tensorrt")
    engine.model.capture = False  # type: ignore[attr-defined]
    decode(engine.session(B))
    assert not gpu.calls["cudaStreamBeginCapture"] and gpu.calls["execute_async_v3"] == 30


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_streams_are_copied_on_the_device(
    gpu: Gpu, small: SmallFixture, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fork and reorder: no copy from or to page-locked memory, which is what the host would see."""
    made = small(layout)
    session, parts = Engine.load(made.path, "tensorrt").session(B), made.ids()
    expected = Engine.load(made.made.path, "onnxruntime", threads=1).session(B)
    for part in parts[:12]:
        session.feed(part), expected.feed(part)
    fork = session.fork()
    pinned = gpu.pinned_bytes
    copied = 0

    def on_device(stream: Any, kind: Any, pairs: Any) -> None:
        nonlocal copied
        for place in (place for pair in pairs for place in pair):
            gpu.memory.check(place, on_device=True)
            copied += place.size
        real(stream, kind, pairs)

    real = gpu.cudart._copy
    monkeypatch.setattr(gpu.cudart, "_copy", on_device)
    fork._streams.adopt(session._streams, np.arange(B))  # what `fork` does to a new session
    session.reorder([1, 0]), expected.reorder([1, 0])
    monkeypatch.undo()
    assert copied and gpu.pinned_bytes == pinned
    np.testing.assert_allclose(session.feed(parts[12]), expected.feed(parts[12]), atol=1e-5, rtol=0)
    agree([fork.feed(parts[12])], [made.expected()[12]])


# Files


@each_layout
@pytest.mark.parametrize("there", ["from the GPU", "to the GPU"])
def test_a_saved_session_goes_on_elsewhere(
    gpu: Gpu, small: SmallFixture, layout: str, there: str, tmp_path: Path
) -> None:
    made = small(layout)
    engines = [Engine.load(made.path, name, threads=1) for name in ("tensorrt", "onnxruntime")]
    first, second = engines if there == "from the GPU" else engines[::-1]
    session, parts = first.session(B), made.ids()
    found = fed(session, parts[:13])
    session.save(tmp_path / "s")
    agree([*found, *fed(second.restore(tmp_path / "s"), parts[13:])], made.expected())
    agree(fed(session, parts[13:]), made.expected()[13:])


# Sizes


@pytest.mark.parametrize("batch, wrong, says", [("2:2:4", 1, "1:1:4"), ("1:2:2", 3, "1:3:3"), (2, 8, "2:8:8")])
def test_a_batch_that_engines_were_not_built_for(
    gpu: Gpu, small: SmallFixture, batch: Any, wrong: int, says: str, tmp_path: Path
) -> None:
    made = small("ring")
    bundle = with_engines(made.made.path, tmp_path / "b", batch=batch)
    engine = Engine.load(bundle, "tensorrt")
    with pytest.raises(InputError) as e:
        engine.session(wrong)
    assert f"--batch {says}" in one_line(e.value) and f"batch_size is {wrong}" in str(e.value)
    assert gpu.live_bytes == 0
    agree(fed(engine.session(B), made.ids()), made.expected())


@pytest.mark.parametrize("mem_len", [0, 5, 12])
def test_sessions_that_remember_less(gpu: Gpu, small: SmallFixture, mem_len: int, tmp_path: Path) -> None:
    made = small("ring")
    engine = Engine.load(made.path, "tensorrt")
    judge = Engine.load(made.made.checkpoint, "eager", mem_len=mem_len, segment_len=8).session(B)
    session, parts = engine.session(B, mem_len), made.ids()
    expected = fed(judge, parts)
    found = fed(session, parts[:10])
    session.save(tmp_path / "s")
    agree([*found, *fed(engine.restore(tmp_path / "s"), parts[10:])], expected)
    agree(fed(Engine.load(made.path, "tensorrt", mem_len=mem_len).session(B), parts), expected)


def test_a_model_without_a_memory(gpu: Gpu, exported: Any, tmp_path: Path) -> None:
    made = exported("no_memory", "kv", ("1-64",))
    bundle = with_engines(made.path, tmp_path / "b")
    session, judge = Engine.load(bundle, "tensorrt").session(B), made.judge.session(B)
    parts = np.split(random_ids(made.config, B, 40), np.cumsum(CUTS)[:9], axis=1)
    agree(fed(session, parts), fed(judge, parts))


# The command line


def run(*args: object) -> Any:
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_the_command_line(gpu: Gpu, small: SmallFixture, layout: str, tmp_path: Path) -> None:
    """`verify`, `score` and `generate` run on the GPU, and answer what they answer elsewhere."""
    made = small(layout)
    bundle = tmp_path / "bundle"
    shutil.copytree(made.path, bundle)
    ids = tmp_path / "ids.npy"
    np.save(ids, random_ids(made.made.config, 1, 120)[0])
    scores = {
        name: json.loads(run("score", bundle, "--ids", ids, "--backend", name, "--json").stdout)
        for name in ("tensorrt", "onnxruntime")
    }
    assert scores["tensorrt"]["backend"] == "tensorrt"
    assert abs(scores["tensorrt"]["nats_per_token"] - scores["onnxruntime"]["nats_per_token"]) < 1e-5

    text = [
        run("generate", bundle, "--ids", ids, "--max-new-tokens", 30, "--temperature", 0, "--backend", name).stdout
        for name in ("tensorrt", "onnxruntime")
    ]
    assert text[0] == text[1] and len(text[0].split()) == 30

    judge = native.save(tmp_path / "judge", made.made.checkpoint)
    found = run("verify", bundle, "--checkpoint", judge, "--random", 1, "--batch-size", 2, "--backend", "tensorrt")
    assert "tensorrt" in found.stdout


def test_the_command_line_says_what_a_gpu_refuses(gpu: Gpu, small: SmallFixture, tmp_path: Path) -> None:
    made = small("ring")
    np.save(tmp_path / "ids.npy", random_ids(made.made.config, 1, 120)[0])
    gpu.capacity = 8000
    result = CliRunner().invoke(main, ["score", str(made.path), "--ids", str(tmp_path / "ids.npy")])
    assert result.exit_code == 3 and "bytes on the GPU" in result.output
