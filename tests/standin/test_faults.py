"""Mistakes that a backend on a GPU could make, each planted: a drive against the judge or a refusal catches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.bundles import one_line
from tests.standin.arrays import Array, CudaInterface
from tests.standin.drives import (
    CUTS,
    B,
    Small,
    SmallFixture,
    agree,
    answered_there,
    done,
    fed,
    launchers,
    none_gave_up,
)
from tests.standin.gpu import Gpu
from tests.standin.machine import Machine
from txl_export import Engine, Session
from txl_export.backends.device.arrays import DeviceArray
from txl_export.backends.device.calls import Cuda
from txl_export.backends.device.graphs import BoundGraph
from txl_export.backends.device.launch import Launcher
from txl_export.backends.device.memory import DeviceRows, Staging
from txl_export.backends.device.streams import DeviceTurns
from txl_export.backends.device.tape import DeviceSide
from txl_export.backends.device.tensorrt import Context, TensorRTModel
from txl_export.errors import DeviceError, EnvironmentMismatch

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def before(patch: Patch, owner: type, name: str, change: Callable[..., tuple[Any, ...]]) -> None:
    """Let a method be called with what `change` makes of its arguments."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args: real(self, *change(*args)))


def after(patch: Patch, owner: type, name: str, then: Callable[[Any], None]) -> None:
    """Do something to an object once a method of it has run."""
    real = getattr(owner, name)

    def run(self: Any, *args: Any) -> Any:
        given = real(self, *args)
        then(self)
        return given

    patch.setattr(owner, name, run)


# Time


def no_wait_for_answers(patch: Patch) -> None:
    real = BoundGraph._deliver

    def deliver(self: BoundGraph, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as forgetful:
            forgetful.setattr(Cuda, "wait", lambda *_: None)
            real(self, *args)

    patch.setattr(BoundGraph, "_deliver", deliver)


def no_wait_for_staging(patch: Patch) -> None:
    patch.setattr(Staging, "settle", lambda self: None)


def no_wait_for_tokens_of_another_stream(patch: Patch) -> None:
    patch.setattr(Cuda, "wait_in", lambda *_: None)


def no_stream_waits(patch: Patch) -> None:
    patch.setattr(DeviceSide, "give_back", lambda self: None)


def capture_first(patch: Patch) -> None:
    def call(self: Launcher, length: int, addresses: Mapping[str, int]) -> None:
        kind = (length, *addresses.values())
        if self._captured.get(kind) is not None:
            return self.cuda.launch(self._captured[kind], self.stream)
        self.executor.shape(length)
        self._captured[kind] = self._capture(addresses)
        return self.executor.enqueue(addresses)

    patch.setattr(Launcher, "__call__", call)


# Places


def run_with_memory(change: Callable[[dict[str, int]], dict[str, int]]) -> Plant:
    """Bind the memory elsewhere; what a graph is called with comes last."""
    return lambda patch: before(patch, BoundGraph, "run", lambda *args: (*args[:-1], change(dict(args[-1]))))


def in_and_out_swapped(memory: dict[str, int]) -> dict[str, int]:
    return {_other_end(name): address for name, address in memory.items()}


def _other_end(name: str) -> str:
    return name.removeprefix("new_") if name.startswith("new_") else f"new_{name}"


def keys_and_values_swapped(memory: dict[str, int]) -> dict[str, int]:
    """Of the outputs."""
    swapped = {n: n.replace("key", "v").replace("value", "key").replace("v_", "value_") for n in memory}
    return {n: memory[swapped[n] if n.startswith("new_") else n] for n in memory}


def layers_swapped(memory: dict[str, int]) -> dict[str, int]:
    """Of the outputs."""
    other = {"0": "1", "1": "0"}
    return {n: memory[n[:-1] + other[n[-1]] if n.startswith("new_") else n] for n in memory}


def drop_address(name: str) -> Plant:
    def change(addresses: Mapping[str, int]) -> tuple[Any, ...]:
        return ({n: a for n, a in addresses.items() if n != name},)

    return lambda patch: before(patch, Context, "enqueue", change)


# Graphs that are launched for what they were not captured for


class Leaving(dict[str, int]):
    """Addresses of which the kind of a call leaves out some."""

    def __init__(self, addresses: Mapping[str, int], left_out: Callable[[str], bool]) -> None:
        super().__init__(addresses)
        self._left_out = left_out

    def values(self) -> Any:
        return [a for n, a in self.items() if not self._left_out(n)]


class AnyLength(int):
    """Equal to every other."""

    __eq__ = lambda self, other: True  # noqa: E731
    __ne__ = lambda self, other: int(self) != int(other)  # noqa: E731
    __hash__ = lambda self: 0  # noqa: E731


def kind_without(left_out: Callable[[str], bool]) -> Plant:
    return lambda patch: before(patch, Launcher, "__call__", lambda n, a: (n, Leaving(a, left_out)))


def kind_without_length(patch: Patch) -> None:
    before(patch, Launcher, "__call__", lambda n, a: (AnyLength(n), a))


def shapes_set_once(patch: Patch) -> None:
    real = Context.shape
    patch.setattr(Context, "shape", lambda self, n: None if "input_ids" in self._set else real(self, n))


# Memory that goes too early


def memory_freed(patch: Patch) -> None:
    after(patch, DeviceRows, "__init__", lambda rows: rows._block.close())


def buffers_freed(patch: Patch) -> None:
    def free(streams: DeviceTurns) -> None:
        for slot in streams._slots[1:]:
            next(iter(slot.blocks.values())).close()

    after(patch, DeviceTurns, "__init__", free)


def staging_freed(patch: Patch) -> None:
    after(patch, Staging, "__init__", lambda staging: staging._block.close())


def pinned_freed(patch: Patch) -> None:
    after(patch, Staging, "__init__", lambda staging: staging._owned.close())


def scratch_freed(patch: Patch) -> None:
    after(patch, Context, "__init__", lambda context: context._scratch.close())


def kept_rows_freed(patch: Patch) -> None:
    real = DeviceRows.keep

    def keep(self: DeviceRows, *args: Any) -> Any:
        kept = real(self, *args)
        kept.block.close()
        return kept

    patch.setattr(DeviceRows, "keep", keep)


def context_dropped(patch: Patch) -> None:
    def forget(context: Context) -> None:
        context._context = context._loaded.engine.create_execution_context(
            context._model.native.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )

    after(patch, Context, "enqueue", forget)


def answer_freed(patch: Patch) -> None:
    real = DeviceArray.empty.__func__  # type: ignore[attr-defined]

    def empty(*args: Any) -> Any:
        made = real(DeviceArray, *args)
        made._owner.close()
        return made

    patch.setattr(DeviceArray, "empty", empty)


def one_scratch(patch: Patch) -> None:
    real, made = TensorRTModel.scratch, []

    def scratch(self: TensorRTModel) -> Any:
        made.append(made[0] if made else real(self))
        return made[0]

    patch.setattr(TensorRTModel, "scratch", scratch)


def no_graph_is_kept(patch: Patch) -> None:
    """A graph goes while it may be running."""
    real = Launcher._capture

    def capture(self: Launcher, *args: Any) -> Any:
        graph = real(self, *args)
        if graph is not None:
            graph.close()
        return graph

    patch.setattr(Launcher, "_capture", capture)


# The drives: each gives what is wrong, by raising


def on_host(gpu: Gpu, small: Small) -> None:
    session = Engine.load(small.path, "tensorrt").session(B)
    agree(fed(session, small.ids()), small.expected())
    none_gave_up(session)


def answers_there(gpu: Gpu, small: Small) -> None:
    session = Engine.load(small.path, "tensorrt").session(B)
    agree(answered_there(gpu, session, small.ids()), small.expected())


def two_sessions(gpu: Gpu, small: Small) -> None:
    """Neither waits for the other: each has its tokens from a stream of its own."""
    engine = Engine.load(small.path, "tensorrt")
    sessions = [(engine.session(B), Machine(gpu).stream) for _ in range(2)]
    kept, answers = [], []  # callers keep tokens until they are read
    for part in small.ids():
        for session, stream in sessions:
            kept.append(CudaInterface(gpu, part, stream))
            answers.append(session.feed(kept[-1]))
    done(gpu)
    agree([answer.numpy() for answer in answers[::2]], small.expected())
    agree([answer.numpy() for answer in answers[1::2]], small.expected())


def fed_twice_there(gpu: Gpu, small: Small) -> None:
    """Tokens somewhere else every time, the answer always in one place, read each time."""
    session, width = Engine.load(small.path, "tensorrt").session(B), small.made.config.vocab_size
    ids = [Array(gpu, part) for part in small.ids()]
    places = {n: Array(gpu, np.zeros((B, n, width), np.float32)) for n in CUTS}
    found = []
    for part, n in zip(ids, CUTS, strict=True):
        session.feed(part, out=places[n])
        done(gpu)
        found.append(places[n].numpy())
    agree(found, small.expected())


def read_there(gpu: Gpu, small: Small) -> None:
    """Each answer is read in the stream that it came from, as soon as `feed` returns."""
    m, session, width = Machine(gpu), Engine.load(small.path, "tensorrt").session(B), small.made.config.vocab_size
    found = []
    for part in small.ids():
        out = CudaInterface(gpu, np.zeros((*part.shape, width), np.float32), m.stream)
        session.feed(part, out=out)
        target, seen = m.pinned(np.zeros((*part.shape, width), np.float32))
        m.copy(target, out.address, seen.nbytes)
        code = m.code("cudaStreamSynchronize", m.stream)
        assert code == "cudaSuccess", gpu.reasons
        found.append(seen.copy())
    agree(found, small.expected())


def written_over_there(gpu: Gpu, small: Small) -> None:
    """Tokens are written over, in the stream that they came from, as soon as `feed` returns."""
    m, session = Machine(gpu), Engine.load(small.path, "tensorrt").session(B)
    answers = []
    for part in small.ids():
        ids = CudaInterface(gpu, part, m.stream)
        answers.append(session.feed(ids))
        m.do("cudaMemsetAsync", ids.address, 0, part.nbytes, m.stream)
        code = m.code("cudaStreamSynchronize", m.stream)
        assert code == "cudaSuccess", gpu.reasons
    agree([answer.numpy() for answer in answers], small.expected())


def with_failures(gpu: Gpu, small: Small) -> None:
    """Feeds of several calls, of which a late one fails."""
    session = Engine.load(small.path, "tensorrt").session(B)
    found = []
    for part in small.ids():
        if session.positions[0] > 12:
            gpu.fail("cudaMemcpyAsync", 8)
            with pytest.raises(DeviceError, match="refused cudaMemcpyAsync"):
                session.feed(small.ids((40,))[0])
        found.append(session.feed(part))
    agree(found, small.expected())


NUMBERS, GARBAGE = "Not equal to tolerance", "nan location mismatch"
WRONG_NUMBERS = f"{NUMBERS}|{GARBAGE}"
ILLEGAL = "cudaErrorIllegalAddress"
# Mistake: (how it is planted, layouts where it can be made, the drive that meets it, what is said).
FAULTS: dict[str, tuple[Plant, tuple[str, ...], Callable[[Gpu, Small], None], str]] = {
    "answers read without waiting": (no_wait_for_answers, ("ring", "kv", "hidden"), on_host, WRONG_NUMBERS),
    "staging written again before its copy": (
        no_wait_for_staging, ("ring", "kv", "hidden"), answers_there, WRONG_NUMBERS,
    ),
    "tokens read before another stream made them": (
        no_wait_for_tokens_of_another_stream, ("ring", "kv"), two_sessions, "races with an array's making",
    ),
    "captured before the first run": (capture_first, ("ring", "kv", "hidden"), on_host, "shapes have changed"),
    "buffers swapped": (run_with_memory(in_and_out_swapped), ("kv", "hidden"), on_host, WRONG_NUMBERS),
    "keys and values swapped": (run_with_memory(keys_and_values_swapped), ("kv",), on_host, WRONG_NUMBERS),
    "layers swapped": (run_with_memory(layers_swapped), ("kv", "hidden"), on_host, WRONG_NUMBERS),
    "an output not at its alias": (run_with_memory(layers_swapped), ("ring",), on_host, "is not where 'key_00' is"),
    "an address never set": (drop_address("positions"), ("ring", "kv", "hidden"), on_host, "no address was given"),
    "an output's address never set": (
        drop_address("new_positions"), ("ring", "kv", "hidden"), on_host, "no address was given",
    ),
    "a graph launched for other buffers": (
        kind_without(lambda n: n.startswith(("key", "value", "mem", "new_"))), ("kv", "hidden"), on_host,
        WRONG_NUMBERS,
    ),
    "a graph launched for another answer": (
        kind_without(lambda n: n == "log_probs"), ("ring", "kv", "hidden"), answers_there,
        f"{WRONG_NUMBERS}|was freed",
    ),
    "a graph launched for other tokens": (
        kind_without(lambda n: n == "input_ids"), ("ring", "kv", "hidden"), fed_twice_there, WRONG_NUMBERS,
    ),
    "a graph launched for another length": (kind_without_length, ("hidden",), on_host, WRONG_NUMBERS),
    "shapes of another length": (shapes_set_once, ("hidden",), on_host, WRONG_NUMBERS),
    "memory freed": (memory_freed, ("ring",), on_host, "cudaErrorInvalidValue"),
    "one of the buffers freed": (buffers_freed, ("kv", "hidden"), on_host, ILLEGAL),
    "staging freed": (staging_freed, ("ring", "kv", "hidden"), on_host, "cudaErrorInvalidValue"),
    "the host's side of staging freed": (pinned_freed, ("ring", "kv", "hidden"), on_host, "cudaErrorInvalidValue"),
    "scratch freed": (scratch_freed, ("ring", "kv", "hidden"), on_host, ILLEGAL),
    "a graph dropped": (no_graph_is_kept, ("ring", "kv", "hidden"), on_host, "cudaErrorInvalidValue"),
    "a context dropped": (context_dropped, ("ring", "kv", "hidden"), on_host, ILLEGAL),
    "rows freed that undo a feed": (kept_rows_freed, ("ring",), with_failures, "cudaErrorInvalidValue"),
    "an answer freed": (answer_freed, ("ring", "kv", "hidden"), two_sessions, "was freed"),
    "an answer read before it is made": (no_stream_waits, ("ring", "kv", "hidden"), read_there, "races with"),
    "tokens written over before they are read": (
        no_stream_waits, ("ring", "kv"), written_over_there, "races with|was freed",
    ),
    "scratch shared by sessions": (one_scratch, ("ring", "kv", "hidden"), two_sessions, "races with an engine's run"),
}  # fmt: skip
CASES = [(name, layout) for name, (_, layouts, _, _) in FAULTS.items() for layout in layouts]


@pytest.mark.parametrize("name, layout", CASES)
def test_a_planted_fault_is_caught(gpu: Gpu, small: SmallFixture, name: str, layout: str, monkeypatch: Patch) -> None:
    plant, _, drive, says = FAULTS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, DeviceError)) as e:
        drive(gpu, small(layout))
    told = "\n".join([str(e.value), *gpu.reasons])
    assert any(words in told for words in says.split("|")), told


@pytest.mark.parametrize("layout", ["ring", "kv", "hidden"])
@pytest.mark.parametrize("order", ["late", "early"])
def test_without_a_fault_every_drive_passes(gpu: Gpu, small: SmallFixture, layout: str, order: str) -> None:
    gpu.queues.order = order
    for drive in dict.fromkeys(drive for _, layouts, drive, _ in FAULTS.values() if layout in layouts):
        drive(gpu, small(layout))
    assert not [r for r in gpu.reasons if "told to fail" not in r]


# Calls that fail

# Their codes cannot be acted upon any more, or tell of another failure.
LAST_WORDS = (
    "cudaFree",
    "cudaFreeHost",
    "cudaDeviceSynchronize",
    "cudaGetLastError",
    "cudaGetErrorName",
    "cudaGetErrorString",
)
IN_CAPTURES = ("cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate")


def fed_on(session: Session, parts: Sequence[np.ndarray], refused: list[str]) -> list[np.ndarray]:
    """Answers, where a feed that fails is tried once more: nothing of the first try counts."""
    found = []
    for part in parts:
        before = session.positions.tolist()
        try:
            found.append(session.feed(part))
        except DeviceError as e:
            assert e.exit_code == 3 and session.positions.tolist() == before
            refused.append(one_line(e))
            found.append(session.feed(part))
    return found


def opened(small: Small, refused: list[str]) -> Session:
    """A session, for which what fails is tried once more."""
    try:
        return Engine.load(small.path, "tensorrt").session(B)
    except (DeviceError, EnvironmentMismatch) as e:
        refused.append(one_line(e))
    return Engine.load(small.path, "tensorrt").session(B)


def calls_of_a_drive(gpu: Gpu, small: Small) -> Counter[str]:
    """How often each function that can fail is called by what `test_a_call_that_fails` does."""
    gpu.calls.clear()
    fed(opened(small, []), small.ids())
    destroying = tuple(name for name in gpu.calls if name.endswith("Destroy"))
    return Counter({n: c for n, c in gpu.calls.items() if n not in (*LAST_WORDS, *destroying, "engine run")})


@pytest.mark.parametrize("layout", ["ring", "kv", "hidden"])
def test_a_call_that_fails_is_told_and_nothing_of_its_feed_counts(
    gpu: Gpu, small: SmallFixture, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call of a drive's in turn, the first, one in the middle and the last of its kind."""
    made = small(layout)
    counted = calls_of_a_drive(gpu, made)
    assert {"cudaMalloc", "cudaMemcpyAsync", "cudaGraphLaunch", "execute_async_v3", *IN_CAPTURES} <= counted.keys()
    for name, count in counted.items():
        for nth in sorted({1, 2, count // 2 + 1, count}):
            if nth > count:
                continue
            refused: list[str] = []
            gpu.fail(name, nth)
            session = opened(made, refused)
            agree(fed_on(session, made.ids(), refused), made.expected())
            why = [launcher.why_not for launcher in launchers(session) if launcher.why_not]
            told = "; ".join([*refused, *why])
            assert len(refused) + len(why) == 1, (name, nth, refused, why)
            assert (name in told and "cudaErrorUnknown" in told) or "told to fail" in told, (name, told)
            assert not why or name in (*IN_CAPTURES, "execute_async_v3")
            assert [r.getMessage().rpartition("slower: ")[2] for r in caplog.records] == why
            caplog.clear()
            assert gpu.last == gpu.cudart.cudaError_t.cudaSuccess, name  # the next call has an error of its own


@pytest.mark.parametrize("layout", ["ring", "kv"])
@pytest.mark.parametrize("name", ["engine run", "cudaMemcpyAsync", "cudaStreamSynchronize"])
def test_when_the_gpu_is_lost_every_feed_says_so(gpu: Gpu, small: SmallFixture, layout: str, name: str) -> None:
    made = small(layout)
    session = Engine.load(made.path, "tensorrt").session(B)
    parts = made.ids()
    fed(session, parts[:8])
    before = session.positions.tolist()
    gpu.fail(name, 1, gpu.cudart.cudaError_t.cudaErrorLaunchFailure)
    for _ in range(3):
        with pytest.raises(DeviceError, match=r"cudaErrorLaunchFailure|told to fail|earlier error") as e:
            session.feed(parts[8])
        assert one_line(e.value) and e.value.exit_code == 3
        assert session.positions.tolist() == before


def test_shapes_that_were_refused_are_set_again(gpu: Gpu, small: SmallFixture, monkeypatch: Patch) -> None:
    """A call of 5 tokens fails when its shapes are half set; those before and after it have 3."""
    made = small("hidden")
    session, parts = Engine.load(made.path, "tensorrt").session(B), made.ids((3, 3, 3))
    found = [session.feed(parts[0])]
    with monkeypatch.context() as patch:
        patch.setattr("tests.standin.trt_context.IExecutionContext.infer_shapes", lambda self: ["input_ids"])
        with pytest.raises(DeviceError, match="does not know the shapes of input_ids"):
            session.feed(made.ids((5,))[0])
    agree([*found, *fed(session, parts[1:])], made.expected((3, 3, 3)))
