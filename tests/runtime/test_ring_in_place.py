"""Layout `ring` in ONNX Runtime: the buffers that graphs write, what a failing call leaves, and backend `typed`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.bundles import RING_REWIND, Exported, ExportFixture, exported_ring, one_line, same_arrays
from tests.helpers import random_ids
from txl_export import Bundle, Engine, Session
from txl_export.bundle import MANIFEST, digest, file_entry
from txl_export.calls import CallCosts
from txl_export.errors import BundleError

B = 2


@pytest.fixture
def bundle(exported: ExportFixture) -> Exported:
    return exported_ring(exported)


def feed(session: Session, *lengths: int, seed: int = 0) -> list[np.ndarray]:
    """Feed random tokens; the answers."""
    ids = [random_ids(session.info.config, session.batch_size, n, seed=seed + i) for i, n in enumerate(lengths)]
    return [np.asarray(session.feed(i)) for i in ids]


def never_noticed(failed: Session, other: Session) -> None:
    """Same bits in memory, positions and all that follows."""
    assert same_arrays(failed._streams.state(), other._streams.state())
    for a, b in zip(feed(failed, 8, 1, 20, 4, seed=50), feed(other, 8, 1, 20, 4, seed=50), strict=True):
        np.testing.assert_array_equal(a, b)
    failed.rewind(RING_REWIND), other.rewind(RING_REWIND)
    np.testing.assert_array_equal(feed(failed, 5), feed(other, 5))


class Failing:
    """Stands in for `run_with_iobinding`: fails the given time, before or after the graph has run."""

    def __init__(self, at: int, error: BaseException, after: bool) -> None:
        self.real = ort.InferenceSession.run_with_iobinding
        self.left, self.error, self.after = at, error, after

    def run(self, session: ort.InferenceSession, *args: object) -> None:
        self.left -= 1
        if self.left or self.after:
            self.real(session, *args)
        if not self.left:
            raise self.error


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("error", [RuntimeError("device lost"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("past", [(), (8, 8, 8, 8), (8, 1, 4, 8, 3, 8)], ids=["fresh", "wrapped", "warm"])
def test_a_call_that_fails(bundle, at, error, after, past):
    """40 tokens overwrite the whole ring: rows that count come back, also where a graph ran for the first time."""
    a, b = bundle.engine.session(B), bundle.engine.session(B)
    feed(a, *past), feed(b, *past)
    failing = Failing(at, error, after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort.InferenceSession, "run_with_iobinding", lambda session, *args: failing.run(session, *args))
        with pytest.raises(type(error)):
            feed(a, 40, seed=9)
        assert failing.left == 0
    never_noticed(a, b)


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()], ids=repr)
def test_failure_while_binding(bundle, error, monkeypatch):
    """A binding that was made in part is not used later."""
    import txl_export.backends.onnxruntime as backend

    a, b = bundle.engine.session(B), bundle.engine.session(B)
    real, count = backend._bind_output, [0]

    def bind_output(*args: object) -> None:
        count[0] += 1
        if count[0] == 2:
            raise error
        real(*args)

    monkeypatch.setattr(backend, "_bind_output", bind_output)
    with pytest.raises(type(error)):
        feed(a, 8)
    never_noticed(a, b)


# Graphs that write elsewhere


def edited(
    bundle: Exported, folder: Path, length: int, change: Callable[[onnx.GraphProto, onnx.NodeProto], None]
) -> Engine:
    """The bundle, its graph of so many tokens changed where the last layer writes its keys."""
    shutil.copytree(bundle.path, folder)
    file = folder / f"log_probs.L{length}.onnx"
    model = onnx.load(file, load_external_data=False)
    change(model.graph, next(n for n in model.graph.node if n.output[0] == "new_key_01"))
    onnx.save(model, file)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][file.name] = file_entry(file)
    (folder / MANIFEST).write_text(json.dumps(manifest | {"digest": digest(manifest)}))
    return Engine.load(folder, threads=1)


def moved(by: int) -> Callable[[onnx.GraphProto, onnx.NodeProto], None]:
    """Let a node write so many slots further on."""

    def change(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(by), "by"))
        at = list(graph.node).index(node)
        graph.node.insert(at, onnx.helper.make_node("Add", [node.input[2], "by"], ["elsewhere"], "moved"))
        node.input[2] = "elsewhere"

    return change


def unwritten(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Let a node give back what it got."""
    node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output, "unwritten"))


@pytest.mark.parametrize("length, others", [(1, 8), (4, 1)])
@pytest.mark.parametrize("change", [moved(1), moved(-1), unwritten], ids=["next", "previous", "unwritten"])
def test_a_graph_that_writes_elsewhere_is_refused(bundle, tmp_path, change, length, others):
    """At its first call, and nothing of it stays: what other graphs do goes on."""
    session, other = edited(bundle, tmp_path / "b", length, change).session(B), bundle.engine.session(B)
    for s in (session, other):
        s._streams._costs = CallCosts({others: 1.0})
        feed(s, 8, 8, 7, 8, 8)  # up to the ring's end and on
        s._streams._costs = CallCosts({length: 1.0})
    for _ in range(2):
        with pytest.raises(BundleError) as e:
            feed(session, length)
        assert f"log_probs.L{length}.onnx does not write its memory in place" in one_line(e.value)
    assert same_arrays(session._streams.state(), other._streams.state())
    for s in (session, other):
        s._streams._costs = CallCosts({others: 1.0})
    np.testing.assert_array_equal(feed(session, 7), feed(other, 7))


def test_a_memory_that_holds_no_numbers_is_no_fault_of_a_graph(bundle):
    session = bundle.engine.session(1)
    feed(session, 8, 8)
    session._streams.buffer[...] = np.nan
    assert np.isnan(feed(session, 1)[0]).all()


def test_memory_stays_where_it_is(bundle):
    """Whatever is fed, no call writes outside the rows of its tokens."""
    session = bundle.engine.session(B)
    feed(session, 8, 1, 4, 8, 8, 8)
    streams = session._streams
    place, address = streams.ring.slots.tolist(), streams.buffer.ctypes.data
    before = streams.buffer.copy()
    feed(session, 4)
    changed = (streams.buffer != before).any(axis=(0, 2, 4))
    for b, slot in enumerate(place):
        assert np.flatnonzero(changed[b]).tolist() == [slot, slot + 1, slot + 2, slot + 3]
    assert streams.buffer.ctypes.data == address


# Backend `typed` runs the same module


def same_as_typed(bundle: Exported, mem_len: int, tolerance: float) -> None:
    opened = dataclasses.replace(Bundle.open(bundle.path), judge=bundle.checkpoint)
    sessions = [e.session(3, mem_len) for e in (bundle.engine, Engine.load(opened, backend="typed"))]
    rng, worst = np.random.default_rng(mem_len), 0.0
    for i in range(25):
        counts = rng.integers(1, 15, 3) * (rng.random(3) < 0.8)
        counts[i % 3] = rng.integers(1, 9)
        ids = random_ids(bundle.config, 3, counts.max(), seed=i)
        ours, theirs = (s.feed(ids, lengths=counts) for s in sessions)
        there = np.arange(counts.max()) < counts[:, None]
        assert np.isfinite(ours[there]).all() and np.isfinite(theirs[there]).all()
        worst = max(worst, float(np.abs(ours - theirs)[there].max()))
        for s in sessions:
            s.rewind(int(i % 4 and 1), [i % 3])
    assert worst < tolerance
    state, other = (s._streams.state() for s in sessions)
    assert {k: (a.shape, a.dtype) for k, a in state.items()} == {k: (a.shape, a.dtype) for k, a in other.items()}


@pytest.mark.parametrize("mem_len", [12, 3, 0])
def test_typed_equals_the_graphs(bundle, mem_len):
    same_as_typed(bundle, mem_len, 1e-4)


@pytest.mark.parametrize("mem_len", [12, 5, 1])
def test_typed_equals_the_graphs_in_half(exported, mem_len):
    """A window shorter than a call: padding behind the ring's end sees itself, or it would poison what is seen."""
    half = exported_ring(exported, "sliding", "fp16")
    assert half.engine.session(1)._streams.buffer.dtype == np.float16
    same_as_typed(half, mem_len, 0.1)


@pytest.mark.parametrize("tensor, steps", [(0, 3), (-1, 1)], ids=["a first layer's key", "the last layer's value"])
def test_a_stream_that_ended_in_nan_starts_anew(bundle, tensor, steps):
    """Rows that are not seen count nothing, but 0 times NaN is NaN; the other stream is not touched."""
    session, fresh = bundle.engine.session(B), bundle.engine.session(B)
    feed(session, 8, 8)
    session._streams.buffer[tensor, 0, :, session._streams.ring.slots[0] - 2] = np.nan
    last = feed(session, *[2] * steps)[-1]
    assert np.isnan(last[0]).all() and np.isfinite(last[1]).all()
    kept = session._streams.buffer[:, 1].copy()
    session.reset([0])
    np.testing.assert_array_equal(session._streams.buffer[:, 1], kept)
    session.reset([1])
    np.testing.assert_array_equal(feed(session, 5)[0], feed(fresh, 5)[0])
