"""Tokens and answers that are on the GPU: the numbers of the host, nothing copied or waited for; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.bundles import one_line, same_arrays
from tests.helpers import random_ids
from tests.standin.arrays import INTERFACES, Array, CudaInterface, Dlpack, OldDlpack
from tests.standin.dlpack import _Managed, _Versioned
from tests.standin.drives import B, SmallFixture, agree, done, fed, none_gave_up
from tests.standin.gpu import Gpu
from tests.standin.machine import Machine
from tests.standin.test_arrays import consume
from txl_export import Engine, Session
from txl_export.backends.device.arrays import DeviceArray
from txl_export.errors import DeviceError, InputError

each_layout = pytest.mark.parametrize("layout", ["ring", "kv", "hidden"])
each_interface = pytest.mark.parametrize("kind", INTERFACES)


@pytest.fixture
def m(gpu: Gpu) -> Machine:
    return Machine(gpu)


def session_of(made: Any, batch_size: int = B) -> Session:
    return Engine.load(made.path, "tensorrt").session(batch_size)


def empty_out(m: Machine, made: Any, n: int, kind: Any = Array, batch_size: int = B, **how: Any) -> Any:
    return kind(m.gpu, np.zeros((batch_size, n, made.made.config.vocab_size), np.float32), **how)


# The numbers


@each_layout
@each_interface
@pytest.mark.parametrize("order", ["late", "early"])
def test_tokens_of_any_library_made_in_another_stream(
    m: Machine, small: SmallFixture, layout: str, kind: Any, order: str
):
    made = small(layout)
    m.gpu.queues.order = order
    session, parts = session_of(made), made.ids()
    ids = [kind(m.gpu, part, m.stream) for part in parts]
    answers = [session.feed(array) for array in ids]
    assert all(isinstance(a, DeviceArray) and a.shape[:2] == p.shape for a, p in zip(answers, parts, strict=True))
    agree([answer.numpy() for answer in answers], made.expected())
    none_gave_up(session)


@each_layout
@each_interface
def test_answers_into_an_array_of_any_library(m: Machine, small: SmallFixture, layout: str, kind: Any) -> None:
    made = small(layout)
    session, parts = session_of(made), made.ids()
    outs = [empty_out(m, made, part.shape[1], kind) for part in parts]
    assert all(session.feed(part, out=out) is out for part, out in zip(parts, outs, strict=True))
    done(m.gpu)
    agree([out.numpy() for out in outs], made.expected())


@each_layout
def test_places_of_tokens_and_answers_may_change(m: Machine, small: SmallFixture, layout: str) -> None:
    """Host or device, in any mix: one session, one past."""
    made = small(layout)
    session, parts, found = session_of(made), made.ids(), []
    for i, part in enumerate(parts):
        ids = Array(m.gpu, part) if i % 2 else part
        if i % 3 == 1:
            out = empty_out(m, made, part.shape[1])
            session.feed(ids, out=out)
            done(m.gpu)
            found.append(out.numpy())
        elif i % 3 == 2:
            found.append(np.zeros((*part.shape, made.made.config.vocab_size), np.float32))
            assert session.feed(ids, out=found[-1]) is found[-1]
        else:
            answer = session.feed(ids)
            found.append(answer.numpy() if i % 2 else answer)
    agree(found, made.expected())


@pytest.mark.parametrize("batch_size", [1, 3])
@each_layout
def test_feeds_of_several_calls(m: Machine, small: SmallFixture, layout: str, batch_size: int) -> None:
    """One stream's part of a feed is bound where it is, unless it begins at an address that no engine takes."""
    made, cuts = small(layout), (40, 8, 33, 1, 17)
    session, parts = session_of(made, batch_size), made.ids(cuts, batch_size)
    ids = [Array(m.gpu, part) for part in parts]
    agree([session.feed(array).numpy() for array in ids], made.expected(cuts, batch_size))


def test_streams_that_read_as_much_as_each_is_given(m: Machine, small: SmallFixture) -> None:
    made = small("ring")
    there, here = session_of(made), session_of(made)
    rng = np.random.default_rng(1)
    for n in (4, 20, 9, 1, 12, 30):
        ids, lengths = random_ids(made.made.config, B, n, seed=n), rng.integers(0, n + 1, B)
        lengths[0] = max(lengths[0], 1)
        array = Array(m.gpu, ids)
        np.testing.assert_array_equal(there.feed(array, lengths=lengths).numpy(), here.feed(ids, lengths=lengths))
        top = there.feed(array, head="top_k", lengths=lengths), here.feed(ids, head="top_k", lengths=lengths)
        for a, b in zip(*top, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    assert same_arrays(there._streams.state(), here._streams.state())


@each_interface
@pytest.mark.parametrize("head, columns", [("target", 20), ("target@last", 1)])
def test_targets(m: Machine, small: SmallFixture, kind: Any, head: str, columns: int) -> None:
    made = small("ring")
    there, here, ids = session_of(made), session_of(made), random_ids(made.made.config, B, 20)
    targets = random_ids(made.made.config, B, columns, seed=1)
    arrays = kind(m.gpu, ids, m.stream), kind(m.gpu, targets, m.new_stream())
    answer = there.feed(arrays[0], head=head, targets=arrays[1])
    np.testing.assert_array_equal(answer.numpy(), here.feed(ids, head=head, targets=targets))
    mixed = there.feed(ids, head=head, targets=arrays[1])
    np.testing.assert_array_equal(mixed, here.feed(ids, head=head, targets=targets))


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_the_answer_of_one_session_is_the_token_of_another(m: Machine, small: SmallFixture, layout: str) -> None:
    """What another session's stream makes is waited for there, without the host."""
    made = small("ring")
    first, second, alone = session_of(made), session_of(small(layout)), session_of(small(layout))
    ids = random_ids(made.made.config, B, 8)
    tokens = Array(m.gpu, ids)
    answers = [first.feed(tokens, head="top_k") for _ in range(3)]  # the first call of a graph waits, later ones don't
    best = answers[-1].ids  # [B, 8, k]
    kept = DeviceArray(best._cuda, best._stream, (B, 8 * best.shape[2]), "int64", best.address, best)
    answer = second.feed(kept)
    first.feed(ids)
    np.testing.assert_array_equal(answer.numpy(), alone.feed(best.numpy().reshape(B, -1)))


# What is not done


@each_layout
def test_nothing_passes_through_the_host_and_nothing_waits(
    m: Machine, small: SmallFixture, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copy of the small staging a feed, whatever the answer's size, and no call that waits for the device."""
    made = small(layout)
    session, tokens = session_of(made), CudaInterface(m.gpu, np.ones((B, 1), np.int64), m.stream)
    out, others = empty_out(m, made, 1, CudaInterface, stream=m.stream), random_ids(made.made.config, B, 20)
    fed(session, np.split(others, 20, axis=1))
    copies: list[tuple[Any, Any]] = []
    real = m.gpu.cudart._copy
    monkeypatch.setattr(m.gpu.cudart, "_copy", lambda s, k, pairs: (copies.extend(pairs), real(s, k, pairs)))
    m.gpu.calls.clear()
    for _ in range(30):
        session.feed(tokens, out=out)
    assert len(copies) == 30 and all(to.size == of.size < 4000 for to, of in copies)
    waiting = {n: c for n, c in m.gpu.calls.items() if "Synchronize" in n or "Free" in n or "Malloc" in n}
    assert waiting == {"cudaEventSynchronize": 30}  # for the staging of the call before
    kinds = 1 if layout == "ring" else 2
    assert m.gpu.calls["cudaGraphLaunch"] == 30 - 2 * kinds  # the answer's place is captured
    alone = session_of(made)
    fed(alone, np.split(others, 20, axis=1))
    expected = [alone.feed([[1]] * B) for _ in range(30)][-1]
    done(m.gpu)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_new_answers_wait_for_nothing_either(m: Machine, small: SmallFixture) -> None:
    """More places than are captured: those that are forgotten were never launched."""
    made = small("ring")
    session, ids = session_of(made), CudaInterface(m.gpu, np.ones((B, 1), np.int64), m.stream)
    session.feed(ids)
    m.gpu.calls.clear()
    answers = [session.feed(ids) for _ in range(40)]
    assert not m.gpu.calls["cudaStreamSynchronize"] and not m.gpu.calls["cudaDeviceSynchronize"]
    assert len({a.address for a in answers}) == 40


# What is refused


IDS, TARGETS = np.ones((B, 3), np.int64), np.ones((B, 3), np.int64)
OUT = np.zeros((B, 3, 29), np.float32)
# By name what is given, each as (values, how), and what `feed` says.
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "int32 tokens": ({"ids": IDS.astype(np.int32)}, "ids have dtype int32 on the GPU, expected int64"),
    "float tokens": ({"ids": IDS.astype(np.float32)}, "ids have dtype float32 on the GPU, expected int64"),
    "another batch": ({"ids": IDS[:1]}, "ids have shape [1, 3], expected [2, n]"),
    "flat tokens": ({"ids": IDS[0]}, "ids have shape [3], expected [2, n]"),
    "tokens with gaps": ({"ids": (IDS, {"padding": 1})}, "ids have strides [4, 1] on the GPU, expected a C-contiguous"),
    "targets with gaps": ({"ids": IDS, "targets": (TARGETS, {"padding": 2})}, "targets have strides [5, 1]"),
    "too few targets": ({"ids": IDS, "targets": TARGETS[:, :2]}, "targets have shape [2, 2], expected [2, 3]"),
    "int32 targets": ({"ids": IDS, "targets": TARGETS.astype(np.int32)}, "targets have dtype int32"),
    "a half answer": ({"ids": IDS, "out": OUT.astype(np.float16)}, "out is float16 [2, 3, 29], expected float32"),
    "a short answer": ({"ids": IDS, "out": OUT[:, :2]}, "out is float32 [2, 2, 29], expected float32 [2, 3, 29]"),
    "an answer with gaps": ({"ids": IDS, "out": (OUT, {"padding": 3})}, "out have strides [96, 32, 1]"),
}


@each_interface
@pytest.mark.parametrize("name", ODD)
def test_what_is_refused_in_a_line(m: Machine, small: SmallFixture, kind: Any, name: str) -> None:
    made = small("ring")
    session = session_of(made)
    given, says = ODD[name]
    arrays = {what: _held(m, kind, values) for what, values in given.items()}
    before = session._streams.state()
    with pytest.raises(InputError) as e:
        session.feed(**arrays, head="target" if "targets" in given else None)
    assert says in one_line(e.value)
    assert same_arrays(session._streams.state(), before)


def _held(m: Machine, kind: Any, values: Any) -> Any:
    array, how = values if isinstance(values, tuple) else (values, {})
    return kind(m.gpu, array, **how)


@pytest.mark.parametrize("kind", [Array, CudaInterface, Dlpack])
def test_an_answer_that_may_not_be_written(m: Machine, small: SmallFixture, kind: Any) -> None:
    """Capsules from before DLPack 1.0 do not tell."""
    made = small("ring")
    with pytest.raises(InputError, match="out is read-only on the GPU"):
        session_of(made).feed(np.ones((B, 3), np.int64), out=empty_out(m, made, 3, kind, read_only=True))
    session_of(made).feed(kind(m.gpu, np.ones((B, 3), np.int64), read_only=True)).wait()


def test_an_array_of_another_gpu(m: Machine, small: SmallFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OldDlpack, "__dlpack_device__", lambda self: (2, 1))
    with pytest.raises(InputError, match="ids are on GPU 1, expected GPU 0, which runs the model"):
        session_of(small("ring")).feed(Dlpack(m.gpu, np.ones((B, 3), np.int64)))


def test_an_array_that_its_library_does_not_give(
    m: Machine, small: SmallFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, **_: Any) -> None:
        raise BufferError("Can't export tensors that require gradient,\nuse tensor.detach()")

    monkeypatch.setattr(Dlpack, "__dlpack__", refuse)
    with pytest.raises(InputError, match=r"ids cannot be taken on the GPU .Can't export") as e:
        session_of(small("ring")).feed(Dlpack(m.gpu, np.ones((B, 3), np.int64)))
    one_line(e.value)


@each_interface
@pytest.mark.parametrize("backend", ["onnxruntime", "eager"])
def test_a_model_on_the_host(m: Machine, small: SmallFixture, kind: Any, backend: str) -> None:
    made = small("ring").made
    engine = made.engine if backend == "onnxruntime" else made.judge
    ids = np.ones((B, 3), np.int64)
    for given in (
        {"ids": kind(m.gpu, ids)},
        {"ids": ids, "head": "target", "targets": kind(m.gpu, ids)},
        {"ids": ids, "out": kind(m.gpu, OUT)},
    ):
        with pytest.raises(InputError, match="reads the host's memory: give a numpy array, or run on the GPU") as e:
            engine.session(B).feed(**given)
        assert backend in one_line(e.value)


def test_arrays_of_the_host_are_taken_as_ever(m: Machine, small: SmallFixture) -> None:
    """They speak DLPack too."""
    torch = pytest.importorskip("torch")
    made = small("ring")
    session, parts = session_of(made), made.ids()
    agree([session.feed(torch.from_numpy(part)) for part in parts], made.expected())


# What a feed fails with


@pytest.mark.parametrize("layout", ["ring", "kv"])
@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventRecord", "cudaMalloc"])
def test_a_feed_there_that_fails_leaves_everything_as_it_was(
    m: Machine, small: SmallFixture, layout: str, name: str
) -> None:
    """Of several calls, each kind of failure in turn; tokens and answers may go at once."""
    made = small(layout)
    session, parts = session_of(made), made.ids()
    found = [session.feed(part) for part in parts[:12]]
    before = session._streams.state()
    long, failures = random_ids(made.made.config, B, 40, seed=9), 0
    for nth in range(1, 12):
        m.gpu.fail(name, nth)
        ids = CudaInterface(m.gpu, long, m.stream)
        try:
            session.feed(ids).wait()
        except DeviceError as e:
            failures += 1
            assert name in one_line(e)
            m.synchronise()  # the making of tokens, not their reading
            del ids
            assert same_arrays(session._streams.state(), before)
        else:
            session._load(before)
        m.gpu._faults.clear()
    assert failures
    agree([*found, *fed(session, parts[12:])], made.expected())


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_what_a_failed_feed_was_given_may_go_at_once(m: Machine, small: SmallFixture, layout: str) -> None:
    """Of one stream's tokens and answers parts are bound where they are: its first calls are queued by then."""
    made, cuts = small(layout), (8, 8, 8, 40)
    session, parts = session_of(made, 1), made.ids(cuts, 1)
    found = fed(session, parts[:3])
    for nth in (2, 3, 4, 5):
        ids, out = Array(m.gpu, parts[3]), empty_out(m, made, 40, batch_size=1)
        m.gpu.fail("cudaMemcpyAsync", nth)
        with pytest.raises(DeviceError, match="cudaMemcpyAsync"):
            session.feed(ids, out=out)
        del ids, out
    agree([*found, session.feed(parts[3])], made.expected(cuts, 1))
    assert all("told to fail" in reason for reason in m.gpu.reasons)


def test_rows_that_could_not_be_put_back_are_before_the_next_feed(m: Machine, small: SmallFixture) -> None:
    made = small("ring")
    session, parts = session_of(made), made.ids()
    found = [session.feed(part) for part in parts[:12]]
    m.gpu.fail("cudaMemcpyAsync", 8)
    real = type(session._streams.store).put_back  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(session._streams.store), "put_back", lambda *_: m.gpu.fail("cudaMemcpy2DAsync") or real(*_))  # type: ignore[attr-defined]
        with pytest.raises(DeviceError, match="cudaMemcpy2DAsync"):
            session.feed(random_ids(made.made.config, B, 40))
    assert session.positions.tolist() == [sum(p.shape[1] for p in parts[:12])] * B
    agree([*found, *fed(session, parts[12:])], made.expected())


# What is given out


def test_an_answer_tells_of_itself(m: Machine, small: SmallFixture) -> None:
    made = small("ring")
    ids = np.ones((B, 3), np.int64)
    answer = session_of(made).feed(Array(m.gpu, ids))
    told = answer.__cuda_array_interface__
    assert (told["shape"], told["typestr"], told["strides"], told["version"]) == ((B, 3, 29), "<f4", None, 3)
    assert told["data"] == (answer.address, False) and told["stream"] == int(answer._stream.handle)
    assert answer.__dlpack_device__() == (2, 0) and answer.nbytes == B * 3 * 29 * 4
    target, seen = m.pinned(np.zeros((B, 3, 29), np.float32))
    answer.wait()
    m.copy(target, answer.address, seen.nbytes)
    m.synchronise()
    np.testing.assert_array_equal(seen, session_of(made).feed(ids))


def test_an_answer_belongs_to_the_caller(m: Machine, small: SmallFixture) -> None:
    """Later feeds do not change it, and it outlives its session."""
    made = small("kv")
    session, parts = session_of(made), made.ids()
    ids = CudaInterface(m.gpu, parts[0], m.stream)
    answers = [session.feed(ids)]
    fed(session, parts[1:])
    live = m.gpu.live_bytes
    del session
    assert 0 < m.gpu.live_bytes < live
    agree([a.numpy() for a in answers], made.expected()[:1])


# DLPack, as others read it


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)])
def test_a_capsule_of_an_answer(m: Machine, small: SmallFixture, version: Any) -> None:
    """A consumer that knows the structures finds the array, in its own stream's time, and gives it back."""
    made = small("ring")
    answer = session_of(made).feed(Array(m.gpu, IDS))
    kind = _Versioned if version and version >= (1, 0) else _Managed
    managed, give_back = consume(answer.__dlpack__(stream=int(m.stream), max_version=version), kind)
    tensor = managed.tensor
    assert (tensor.data, tensor.device_type, tensor.device_id, tensor.ndim) == (answer.address, 2, 0, 3)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (2, 32, 1, 0)
    assert (tensor.shape[:3], tensor.strides[:3]) == ([B, 3, 29], [87, 29, 1])
    assert kind is _Managed or (managed.major, managed.flags) == (1, 0)
    target, seen = m.pinned(np.zeros((B, 3, 29), np.float32))
    m.copy(target, tensor.data, seen.nbytes)
    m.synchronise()
    np.testing.assert_array_equal(seen, session_of(made).feed(IDS))
    live = m.gpu.live_bytes
    del answer
    assert m.gpu.live_bytes == live
    give_back()
    assert m.gpu.live_bytes < live


def test_a_consumer_of_another_package(m: Machine, small: SmallFixture) -> None:
    views = pytest.importorskip("cuda.core.utils").StridedMemoryView
    answer = session_of(small("ring")).feed(Array(m.gpu, IDS), head="top_k").ids
    live = m.gpu.live_bytes
    view = views.from_dlpack(answer, stream_ptr=int(m.stream))
    assert (view.ptr, tuple(view.shape), view.dtype, view.device_id) == (answer.address, answer.shape, np.int64, 0)
    assert view.is_device_accessible and not view.readonly
    del answer
    assert m.gpu.live_bytes == live
    del view
    assert m.gpu.live_bytes < live


def test_an_unused_capsule_gives_the_answer_back(m: Machine, small: SmallFixture) -> None:
    for version in (None, (1, 0)):
        answer = session_of(small("ring")).feed(Array(m.gpu, IDS))
        made = answer.__dlpack__(max_version=version)
        live = m.gpu.live_bytes
        del answer
        assert m.gpu.live_bytes == live
        del made
        assert m.gpu.live_bytes < live


def test_whose_stream_waits_for_an_answer(m: Machine, small: SmallFixture) -> None:
    """None is the default stream, by which 1 goes too; -1 is nobody's."""
    answer = session_of(small("ring")).feed(Array(m.gpu, IDS))
    for stream, waits in ((None, 1), (1, 1), (int(m.stream), 1), (-1, 0)):
        before = m.gpu.calls["cudaStreamWaitEvent"]
        answer.__dlpack__(stream=stream)
        assert m.gpu.calls["cudaStreamWaitEvent"] - before == waits
    for odd in ({"stream": 0}, {"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="GPU 0"):
            answer.__dlpack__(**odd)
