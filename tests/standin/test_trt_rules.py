"""TensorRT's rules on the stand-in: what breaks one is refused with a line in the log, or reads garbage."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.standin.gpu import Gpu
from tests.standin.graphs import WIDTH, doubling, in_place
from tests.standin.machine import Machine

X = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
SHAPES = {"x": (2, WIDTH)}
IN_PLACE = {"s": (2, 1, 3, WIDTH), "x": (2, 1, 1, WIDTH), "at": (2,)}


@pytest.fixture
def m(gpu: Gpu) -> Machine:
    return Machine(gpu)


@pytest.fixture
def ready(m, tmp_path):
    """A context that doubles, and where its x and y are."""
    places = {"x": m.put(X), "y": m.device(X.nbytes)}
    engine = m.engine(doubling(tmp_path))
    return m.context(engine, SHAPES, places), places


@pytest.fixture
def cache(m, tmp_path):
    """A context that writes rows 1 and 2 of two streams in place, and where its tensors are."""
    s = m.put(np.zeros((2, 1, 3, WIDTH), np.float32))
    places = {"s": s, "x": m.put(X), "at": m.put(np.array([1, 2])), "new_s": s}
    return m.context(m.engine(in_place(tmp_path)), IN_PLACE, places), places


def refused(m: Machine, context, words: str) -> bool:
    """Whether a run is, and the log says why."""
    known = len(m.gpu.said)
    return context.execute_async_v3(m.stream) is False and words in "".join(m.gpu.said[known:])


# Runs


def test_a_run_happens_in_its_streams_time(m, ready):
    context, places = ready
    assert context.execute_async_v3(m.stream) and not m.gpu.calls["engine run"]
    assert (m.get(places["y"], X) == 2 * X).all() and m.gpu.calls["engine run"] == 1


def test_a_run_in_place_writes_one_row_of_each_stream(m, cache):
    context, places = cache
    assert context.execute_async_v3(m.stream)
    found = m.get(places["s"], np.zeros((2, 3, WIDTH), np.float32))
    expected = np.zeros_like(found)
    expected[0, 1], expected[1, 2] = X
    assert (found == expected).all()


@pytest.mark.parametrize("shape", [(0, WIDTH), (5, WIDTH), (2, WIDTH + 1), (2,)])
def test_shapes_outside_the_profile(m, ready, shape):
    assert ready[0].set_input_shape("x", shape) is False and "profile" in m.gpu.said[-1]
    assert ready[0].set_input_shape("y", (2, WIDTH)) is False
    assert ready[0].execute_async_v3(m.stream), "the shape before still holds"


def test_shapes_that_are_missing_or_contradict_each_other(m, tmp_path):
    engine = m.engine(in_place(tmp_path))
    context = m.context(engine, {"s": (2, 1, 3, WIDTH)}, {})
    assert context.infer_shapes() == ["x", "at"]
    assert refused(m, context, "x, at")
    assert context.set_input_shape("x", (1, 1, 1, WIDTH))
    with pytest.raises(RuntimeError, match="disagree on batch"):
        context.infer_shapes()
    assert refused(m, context, "disagree on batch")


def test_addresses_that_are_missing_null_or_not_aligned(m, ready, tmp_path):
    context, places = ready
    for odd, words in ((0, "no address"), (places["y"] + 128, "aligned")):
        assert context.set_tensor_address("y", odd)
        assert refused(m, context, words)
    assert context.set_tensor_address("z", places["y"]) is False
    assert refused(m, m.context(m.engine(doubling(tmp_path)), SHAPES, {"x": places["x"]}), "no address")


def test_outputs_that_lie_elsewhere_than_declared(m, ready, cache):
    context, places = ready
    assert context.set_tensor_address("y", places["x"])
    assert refused(m, context, "'y' overlaps 'x'")
    context, places = cache
    assert context.set_tensor_address("new_s", m.device(2 * 3 * WIDTH * 4))
    assert refused(m, context, "is not where 's' is")
    assert context.set_tensor_address("new_s", places["s"]) and context.set_tensor_address("x", places["s"] + 256)
    assert refused(m, context, "'new_s' overlaps 'x'")


def test_scratch_memory_is_asked_for_and_overwritten(m, ready):
    context, _ = ready
    size = context.engine.device_memory_size_v2
    bare = context.engine.create_execution_context(m.gpu.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    assert bare.set_input_shape("x", (2, WIDTH)) and bare.set_tensor_address("x", m.put(X))
    assert bare.set_tensor_address("y", m.device(X.nbytes)) and refused(m, bare, "no device memory")
    for address, n, words in ((m.device(size), size - 1, "needs"), (m.device(2 * size) + 8, size, "aligned")):
        context.set_device_memory(address, n)
        assert refused(m, context, words)
    scratch = m.put(np.zeros(size, np.uint8))
    context.set_device_memory(scratch, size)
    assert context.execute_async_v3(m.stream) and m.get(scratch, np.zeros(size, np.uint8)).all()


def test_a_context_may_have_scratch_memory_of_its_own(m, tmp_path):
    engine, before = m.engine(doubling(tmp_path)), m.gpu.live_bytes
    context = engine.create_execution_context()
    assert m.gpu.live_bytes - before >= engine.device_memory_size_v2
    del context
    gc.collect()
    m.gpu.capacity = before
    assert m.gpu.live_bytes == before and engine.create_execution_context() is None and "OutOfMemory" in m.gpu.said[-1]


def test_two_streams_do_not_share_scratch_memory(m, ready):
    context, _ = ready
    other = m.context(context.engine, SHAPES, {"x": m.put(X), "y": m.device(X.nbytes)})
    size = context.engine.device_memory_size_v2
    shared = m.device(size)
    for each in (context, other):
        each.set_device_memory(shared, size)
    assert context.execute_async_v3(m.stream) and other.execute_async_v3(m.new_stream())
    assert m.code("cudaDeviceSynchronize") == "IllegalAddress" and "races" in m.gpu.reasons[-1]


def test_a_run_on_no_stream(m, ready):
    assert ready[0].execute_async_v3(0) is False and ready[0].execute_async_v3(0x77) is False


@pytest.mark.parametrize("what", ["freed", "short", "page-locked"])
def test_memory_that_cannot_hold_what_is_written(m, ready, what):
    context, places = ready
    other = m.device(X.nbytes - 4) if what == "short" else m.pinned(X)[0]
    if what == "freed":
        m.do("cudaFree", places["y"])
    else:
        assert context.set_tensor_address("y", other)
    assert context.execute_async_v3(m.stream)
    assert m.code("cudaStreamSynchronize", m.stream) == "IllegalAddress"


# Captures


def test_a_capture_comes_after_a_run_with_the_same_shapes(m, ready):
    context, _ = ready
    mode = m.cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    for _ in range(2):
        m.do("cudaStreamBeginCapture", m.stream, mode)
        assert refused(m, context, "before a capture")
        assert m.code("cudaStreamEndCapture", m.stream) == "StreamCaptureInvalidated"
        assert context.execute_async_v3(m.stream)
        m.do("cudaGraphLaunch", m.capture(context), m.stream)
        m.synchronise()
        assert context.set_input_shape("x", (1, WIDTH))


def test_a_graph_keeps_the_addresses_and_shapes_of_its_capture(m, ready):
    context, places = ready
    assert context.execute_async_v3(m.stream)
    graph, other = m.capture(context), m.put(X)
    assert context.set_tensor_address("y", other) and context.set_input_shape("x", (1, WIDTH))
    m.do("cudaMemsetAsync", places["y"], 0, X.nbytes, m.stream)
    m.do("cudaGraphLaunch", graph, m.stream)
    assert (m.get(places["y"], X) == 2 * X).all() and (m.get(other, X) == X).all()


def test_a_graph_without_its_context_ends_everything(m, tmp_path):
    places = {"x": m.put(X), "y": m.device(X.nbytes)}
    context = m.context(m.engine(doubling(tmp_path)), SHAPES, places)
    assert context.execute_async_v3(m.stream)
    graph = m.capture(context)
    del context
    gc.collect()
    m.do("cudaGraphLaunch", graph, m.stream)
    assert m.code("cudaStreamSynchronize", m.stream) == "IllegalAddress" and "context" in m.gpu.reasons[-1]


# Calls that are made to fail


def test_failures_on_demand(m, ready, tmp_path):
    context, plan = ready[0], doubling(tmp_path)
    for name in ("deserialize_cuda_engine", "execute_async_v3", "create_execution_context"):
        m.gpu.fail(name)
    assert m.engine(plan) is None and m.engine(plan) is not None
    assert context.engine.create_execution_context() is None
    assert refused(m, context, "told to fail") and context.execute_async_v3(m.stream)
    m.gpu.fail("engine run", 1, m.cudart.cudaError_t.cudaErrorLaunchFailure)
    assert m.code("cudaStreamSynchronize", m.stream) == "LaunchFailure" and m.code("cudaMalloc", 8) == "LaunchFailure"
