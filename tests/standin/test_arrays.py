"""Device arrays of the stand-in, as a consumer of their interfaces meets them."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from tests.standin.arrays import INTERFACES, Array, CudaInterface, Dlpack, OldDlpack
from tests.standin.dlpack import _Managed, _Versioned
from tests.standin.gpu import Gpu
from tests.standin.machine import Machine

VALUES = np.arange(6, dtype=np.int64).reshape(2, 3)
_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
get_pointer = _get(("PyCapsule_GetPointer", ctypes.pythonapi))
USED = b"used"
set_name = _set(("PyCapsule_SetName", ctypes.pythonapi))


@pytest.fixture
def m(gpu: Gpu) -> Machine:
    return Machine(gpu)


@pytest.mark.parametrize("kind", INTERFACES)
@pytest.mark.parametrize("padding", [0, 5])
def test_values_come_back(m, kind, padding):
    assert (kind(m.gpu, VALUES, padding=padding).numpy() == VALUES).all()
    assert kind(m.gpu, np.float16(3)).numpy() == 3


def test_a_producers_work_is_done_in_its_streams_time(m):
    array, (target, seen) = Array(m.gpu, VALUES, m.stream), m.pinned(np.zeros_like(VALUES))
    assert array.__cuda_array_interface__["stream"] == int(m.stream)
    other = m.new_stream()
    m.copy(target, array.address, VALUES.nbytes, other)
    assert m.code("cudaStreamSynchronize", other) == "IllegalAddress" and "array" in m.gpu.reasons[-1]
    assert not seen.any()


def test_the_cuda_interface(m):
    told = CudaInterface(m.gpu, VALUES, padding=1, read_only=True).__cuda_array_interface__
    assert (told["shape"], told["typestr"], told["strides"], told["data"][1]) == ((2, 3), "<i8", (32, 8), True)
    assert CudaInterface(m.gpu, VALUES, stream=0).__cuda_array_interface__["stream"] == 1
    told = CudaInterface(m.gpu, VALUES).__cuda_array_interface__
    assert (told["strides"], told["stream"]) == (None, None)
    assert not hasattr(CudaInterface(m.gpu, VALUES), "__dlpack__")


def test_the_default_stream_by_the_number_that_interfaces_have_for_it(m):
    array, event = CudaInterface(m.gpu, VALUES, stream=0), m.do("cudaEventCreateWithFlags", 2)
    target, seen = m.pinned(np.zeros_like(VALUES))
    m.do("cudaEventRecord", event, array.__cuda_array_interface__["stream"])
    m.do("cudaStreamWaitEvent", m.stream, event, 0)
    m.copy(target, array.address, VALUES.nbytes)
    m.synchronise()
    assert (seen == VALUES).all()


def consume(capsule, kind):
    """What a consumer reads, and the function that gives it back."""
    name = b"dltensor" if kind is _Managed else b"dltensor_versioned"
    where = get_pointer(capsule, name)
    set_name(capsule, USED)
    managed = kind.from_address(where)
    return managed, lambda: managed.deleter(where)


@pytest.mark.parametrize(("version", "kind"), [(None, _Managed), ((1, 0), _Versioned), ((0, 8), _Managed)])
def test_a_capsule_tells_of_the_array_and_keeps_it(m, version, kind):
    array = Dlpack(m.gpu, VALUES, padding=1, read_only=True)
    managed, give_back = consume(array.__dlpack__(max_version=version), kind)
    tensor = managed.tensor
    assert (tensor.data, tensor.device_type, tensor.ndim, tensor.code, tensor.bits) == (array.address, 2, 2, 0, 64)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 3], [4, 1])
    if kind is _Versioned:
        assert (managed.major, managed.flags) == (1, 1)
    live = m.gpu.live_bytes
    del array
    gc.collect()
    assert m.gpu.live_bytes == live
    give_back()
    gc.collect()
    assert m.gpu.live_bytes < live


def test_an_unused_capsule_gives_itself_back(m):
    array = OldDlpack(m.gpu, VALUES)
    assert array.exported == 0
    capsule = array.__dlpack__()
    assert array.exported == 1 and array.__dlpack_device__() == (2, 0)
    del capsule
    assert array.exported == 0


def test_a_consumers_stream_waits_for_the_array_unless_it_asks_not_to(m):
    for stream, arrives in ((int(m.stream), True), (-1, False)):
        array, (target, seen) = Dlpack(m.gpu, VALUES, m.new_stream()), m.pinned(np.zeros_like(VALUES))
        array.__dlpack__(stream=stream)
        m.copy(target, array.address, VALUES.nbytes)
        assert m.code("cudaStreamSynchronize", m.stream) == ("cudaSuccess" if arrives else "IllegalAddress")
        assert (seen == VALUES).all() == arrives
    with pytest.raises(ValueError, match="ambiguous"):
        array.__dlpack__(stream=0)


def test_an_array_that_goes_before_its_reader_is_done(m):
    array, (target, _) = Array(m.gpu, VALUES), m.pinned(np.zeros_like(VALUES))
    m.copy(target, array.address, VALUES.nbytes)
    del array
    gc.collect()
    assert m.code("cudaStreamSynchronize", m.stream) == "IllegalAddress"
