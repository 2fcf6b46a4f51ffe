"""CUDA's rules of captures on the stand-in: what breaks one is refused, and spoils the capture."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.standin.gpu import Gpu
from tests.standin.machine import Machine

HERE, THERE = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
SIZE = HERE.nbytes


@pytest.fixture
def m(gpu: Gpu) -> Machine:
    return Machine(gpu)


def begin(m: Machine, mode: str = "ThreadLocal") -> None:
    m.do("cudaStreamBeginCapture", m.stream, getattr(m.cudart.cudaStreamCaptureMode, f"cudaStreamCaptureMode{mode}"))


def test_a_capture_runs_nothing_and_its_graph_the_same_places_every_time(m):
    address, (source, staging) = m.put(THERE), m.pinned(HERE)
    begin(m)
    m.copy(address, source, SIZE)
    graph = m.do("cudaGraphInstantiate", m.do("cudaStreamEndCapture", m.stream), 0)
    assert (m.get(address, HERE) == THERE).all()
    for fill in (3, 4):
        staging[:] = fill
        m.do("cudaGraphLaunch", graph, m.stream)
        assert (m.get(address, HERE) == fill).all()


@pytest.mark.parametrize("what", ["cudaMalloc", "cudaFree", "cudaDeviceSynchronize", "cudaStreamSynchronize"])
@pytest.mark.parametrize("mode", ["ThreadLocal", "Global"])
def test_what_a_capture_forbids_spoils_it(m, what, mode):
    address = m.device()
    arguments = {"cudaMalloc": [8], "cudaFree": [address], "cudaStreamSynchronize": [m.stream]}.get(what, [])
    begin(m, mode)
    assert m.code(what, *arguments) == "StreamCaptureUnsupported"
    assert m.code("cudaMemsetAsync", address, 0, 8, m.stream) == "StreamCaptureInvalidated"
    assert m.code("cudaStreamEndCapture", m.stream) == "StreamCaptureInvalidated"
    assert m.code("cudaStreamEndCapture", m.stream) == "IllegalState"
    m.synchronise()


def test_another_thread_is_bound_by_a_global_capture_only(m):
    codes = []
    for mode in ("ThreadLocal", "Global"):
        begin(m, mode)
        thread = threading.Thread(target=lambda: codes.append(m.code("cudaMalloc", 8)))
        thread.start(), thread.join()
        m.cudart.cudaStreamEndCapture(m.stream)
    assert codes == ["cudaSuccess", "StreamCaptureUnsupported"]


def test_a_graph_that_uses_freed_memory_ends_everything(m):
    address = m.device()
    begin(m)
    m.do("cudaMemsetAsync", address, 0, 8, m.stream)
    graph = m.do("cudaGraphInstantiate", m.do("cudaStreamEndCapture", m.stream), 0)
    m.do("cudaFree", address)
    m.do("cudaGraphLaunch", graph, m.stream)
    assert m.code("cudaStreamSynchronize", m.stream) == "IllegalAddress"
    assert m.code("cudaStreamSynchronize", m.stream) == "IllegalAddress"


def test_events_do_not_cross_the_border_of_a_capture(m):
    outside, inside = (m.do("cudaEventCreateWithFlags", 2) for _ in range(2))
    m.do("cudaEventRecord", outside, m.stream)
    begin(m)
    m.do("cudaEventRecord", inside, m.stream)
    assert m.code("cudaStreamWaitEvent", m.stream, outside, 0) == "StreamCaptureIsolation"
    assert m.code("cudaEventSynchronize", inside) == "CapturedEvent"
