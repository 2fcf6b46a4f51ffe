"""CUDA's rules on the stand-in: what breaks one is refused, or reads garbage."""

from __future__ import annotations

import numpy as np
import pytest

from tests.standin.gpu import Gpu
from tests.standin.machine import Machine

HERE, THERE = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
SIZE = HERE.nbytes


@pytest.fixture
def m(gpu: Gpu) -> Machine:
    return Machine(gpu)


# Memory


def test_what_is_allocated_is_garbage_aligned_and_counted(m):
    free, total = m.cudart.cudaMemGetInfo()[1:]
    address = m.device(1000)
    assert address % 512 == 0 and m.cudart.cudaMemGetInfo()[1:] == (free - 1024, total)
    assert np.isnan(m.get(address, HERE)).all()
    m.do("cudaFree", address)
    assert m.gpu.live_bytes == 0


def test_a_full_device_says_so_and_lives_on(m):
    m.gpu.capacity = 4096
    held = m.device(3000)
    assert m.code("cudaMalloc", 1025) == "MemoryAllocation"
    m.do("cudaFree", held)
    m.device(4096)


@pytest.mark.parametrize("wrong", [0x10, "inside", "host"])
def test_only_what_was_allocated_is_freed_and_once(m, wrong):
    address = m.device()
    other = {"inside": address + 512, "host": m.pinned(HERE)[0]}.get(wrong, wrong)
    assert m.code("cudaFree", other) == "InvalidValue"
    m.do("cudaFree", address)
    assert m.code("cudaFree", address) == "InvalidValue"
    assert m.code("cudaFreeHost", address) == "InvalidValue"


def test_an_address_does_not_come_back_at_once(m):
    seen = set()
    for size in (3 << 20, 7 << 20) * 4:
        address = m.device(size)
        assert address not in seen and m.gpu.live_bytes == size
        seen.add(address)
        m.do("cudaFree", address)


def test_an_address_is_a_whole_number(m):
    source, _ = m.pinned(HERE)
    for odd in (np.int64(source), HERE, None):
        with pytest.raises(TypeError, match="address"):
            m.cudart.cudaMemcpyAsync(m.device(), odd, SIZE, m.kind, m.stream)


# Copies


@pytest.mark.parametrize("which", ["to", "of"])
def test_a_copy_beyond_the_end_of_what_was_freed_or_not_page_locked(m, which):
    source, freed = m.pinned(HERE)[0], m.device()
    m.do("cudaFree", freed)
    for odd in (m.device(SIZE - 4), freed, m.pinned(HERE[1:])[0], HERE.ctypes.data):
        to, of = (odd, source) if which == "to" else (source, odd)
        assert m.code("cudaMemcpyAsync", to, of, SIZE, m.kind, m.stream) == "InvalidValue"
    m.copy(m.device(SIZE), source, SIZE)


@pytest.mark.parametrize("kind", ["HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice"])
def test_a_copy_of_another_kind(m, kind):
    places = {"Host": m.pinned(HERE)[0], "Device": m.device()}
    of, to = kind.split("To")
    value = getattr(m.cudart.cudaMemcpyKind, f"cudaMemcpy{kind}")
    for a in places:
        for b in places:
            code = m.code("cudaMemcpyAsync", places[a], places[b], SIZE, value, m.stream)
            assert code == ("cudaSuccess" if (a, b) == (to, of) else "InvalidValue")


def test_a_copy_of_rows_leaves_what_is_between_them(m):
    source, _ = m.pinned(np.arange(6, dtype=np.float32))
    target = m.put(np.zeros((3, 4), np.float32))
    m.do("cudaMemcpy2DAsync", target, 16, source, 8, 8, 3, m.kind, m.stream)
    assert m.get(target, np.zeros((3, 4), np.float32)).tolist() == [[0, 1, 0, 0], [2, 3, 0, 0], [4, 5, 0, 0]]
    assert m.code("cudaMemcpy2DAsync", target, 4, source, 8, 8, 3, m.kind, m.stream) == "InvalidPitchValue"
    assert m.code("cudaMemcpy2DAsync", target, 512, source, 8, 8, 3, m.kind, m.stream) == "InvalidValue"


# Time


def test_who_reads_before_synchronising_sees_old_bytes(m):
    address, (target, seen) = m.put(HERE), m.pinned(THERE)
    m.copy(target, address, SIZE)
    assert (seen == THERE).all()
    m.synchronise()
    assert (seen == HERE).all()


def test_staging_that_is_written_over_before_its_copy_arrives_as_it_is_then(m):
    address, (source, staging) = m.device(SIZE), m.pinned(HERE)
    m.copy(address, source, SIZE)
    staging[:] = -1
    assert (m.get(address, HERE) == -1).all()


def test_work_may_also_be_done_at_once(m):
    m.gpu.queues.order = "early"
    address, (source, staging) = m.device(SIZE), m.pinned(HERE)
    m.copy(address, source, SIZE)
    staging[:] = -1
    assert (m.get(address, HERE) == HERE).all()


def test_freeing_waits_for_work_and_page_locked_memory_does_not(m):
    address, (target, seen) = m.put(HERE), m.pinned(THERE)
    m.copy(target, address, SIZE)
    m.do("cudaFree", m.device())
    assert (seen == HERE).all()
    m.copy(target, address, SIZE)
    m.do("cudaFreeHost", target)
    assert m.code("cudaStreamSynchronize", m.stream) == "IllegalAddress"


def test_streams_are_ordered_by_events_only(m):
    other, event = m.new_stream(), m.do("cudaEventCreateWithFlags", 2)
    address, (source, _), (target, seen) = m.device(SIZE), m.pinned(HERE), m.pinned(THERE)
    m.copy(address, source, SIZE)
    m.do("cudaEventRecord", event, m.stream)
    m.do("cudaStreamWaitEvent", other, event, 0)
    m.copy(target, address, SIZE, other)
    m.synchronise(other)
    assert (seen == HERE).all()


def test_streams_that_disturb_each_other_end_everything(m):
    other = m.new_stream()
    address, (source, _), (target, _) = m.device(SIZE), m.pinned(HERE), m.pinned(THERE)
    m.copy(address, source, SIZE)
    m.copy(target, address, SIZE, other)
    assert m.code("cudaStreamSynchronize", other) == "IllegalAddress"
    assert "races" in m.gpu.reasons[0]
    assert {m.code(name, 16) for name in ("cudaMalloc", "cudaMallocHost", "cudaFree")} == {"IllegalAddress"}


def test_events_tell_when_they_are_reached(m):
    first, second, untimed = (m.do("cudaEventCreateWithFlags", flags) for flags in (0, 0, 2))
    assert m.code("cudaEventElapsedTime", first, second) == "InvalidResourceHandle"
    for event in (first, second, untimed):
        m.do("cudaEventRecord", event, m.stream)
    assert m.code("cudaEventElapsedTime", first, second) == "NotReady"
    assert m.code("cudaEventQuery", second) == "NotReady"
    m.do("cudaEventSynchronize", second)
    assert m.do("cudaEventElapsedTime", first, second) > 0
    assert m.code("cudaEventElapsedTime", first, untimed) == "InvalidResourceHandle"


def test_a_stream_that_is_asked_again_and_again_gets_done(m):
    m.copy(m.device(SIZE), m.pinned(HERE)[0], SIZE)
    assert [m.code("cudaStreamQuery", m.stream) for _ in range(2)] == ["NotReady", "cudaSuccess"]


# Handles


def test_what_was_destroyed_or_never_was(m):
    stream, event = m.new_stream(), m.do("cudaEventCreateWithFlags", 2)
    m.do("cudaStreamDestroy", stream), m.do("cudaEventDestroy", event)
    for name, *arguments in (
        ("cudaStreamSynchronize", stream),
        ("cudaStreamDestroy", stream),
        ("cudaMemsetAsync", m.device(), 0, 8, stream),
        ("cudaEventRecord", event, m.stream),
        ("cudaEventSynchronize", event),
        ("cudaStreamWaitEvent", m.stream, 12345, 0),
    ):
        assert m.code(name, *arguments) == "InvalidResourceHandle"
    for name, *arguments in (("cudaGraphLaunch", 1, m.stream), ("cudaGraphExecDestroy", 1), ("cudaGraphDestroy", 1)):
        assert m.code(name, *arguments) == "InvalidValue"


def test_a_destroyed_stream_finishes_its_work(m):
    other, address, (target, seen) = m.new_stream(), m.put(HERE), m.pinned(THERE)
    m.copy(target, address, SIZE, other)
    m.do("cudaStreamDestroy", other)
    m.do("cudaDeviceSynchronize")
    assert (seen == HERE).all()


# Calls that are made to fail


def test_the_nth_call_fails_with_its_code_and_does_nothing(m):
    m.gpu.fail("cudaMalloc", 2, m.cudart.cudaError_t.cudaErrorMemoryAllocation)
    m.device()
    before = m.gpu.live_bytes
    assert m.code("cudaMalloc", 8) == "MemoryAllocation" and m.gpu.live_bytes == before
    m.device()
    assert m.gpu.calls["cudaMalloc"] == 3
