from __future__ import annotations

import ctypes

import pytest

from tests.bundles import one_line
from txl_export.backends.cuda import Device, devices
from txl_export.building.packages import PACKAGES
from txl_export.building.targets import choose_target, describe, parse_capabilities, runs_on
from txl_export.engines import Target
from txl_export.errors import InputError

RTX = PACKAGES["tensorrt-rtx"]
L4, H200, T4 = Device("NVIDIA L4", "sm89"), Device("NVIDIA H200", "sm90"), Device("Tesla T4", "sm75")


@pytest.mark.parametrize("value", ["sm89", "SM89", "89", "8.9", " sm_89 "])
def test_capabilities_as_people_write_them(value):
    assert parse_capabilities([value, "sm89"]) == ("sm89",)


def test_capabilities_rise_by_number():
    assert parse_capabilities(["120", "sm86", "7.5"]) == ("sm75", "sm86", "sm120")


@pytest.mark.parametrize("value", ["", "ada", "sm", "9", "8.9.0", "sm1200"])
def test_capabilities_that_are_none(value):
    with pytest.raises(InputError) as e:
        parse_capabilities([value])
    assert "write sm89" in one_line(e.value)


def test_portable_unless_told():
    assert choose_target(RTX, "1.7", ["sm80"], (), [L4]) == choose_target(RTX, "1.7", ["sm80"], (), []) == Target()


@pytest.mark.parametrize(
    "target, words, label, runs",
    [
        (Target(), "portable: every GPU from sm80 on", "portable", [L4, H200]),
        (Target(None, ("sm75", "sm89")), "sm75 (RTX 20, T4), sm89 (RTX 40, L4, L40)", "sm75-sm89", [L4, T4]),
        (Target(None, ("sm99",)), "sm99", "sm99", []),
        (Target("NVIDIA L4", ("sm89",)), "NVIDIA L4 (sm89)", "nvidia-l4", [L4]),
        (Target("NVIDIA L40", ("sm89",)), "NVIDIA L40 (sm89)", "nvidia-l40", []),
    ],
)
def test_which_gpus_an_engine_is_for(target, words, label, runs):
    assert (describe(target), target.label) == (words, label)
    assert [d for d in (L4, H200, T4) if runs_on(target, d)] == runs


class Driver:
    """Answers like the driver's library, for two GPUs."""

    GPUS = ((b"NVIDIA L4", 8, 9), (b"NVIDIA RTX 5090", 12, 0))

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.GPUS)
        return 0

    def cuDeviceGet(self, handle, n):
        handle._obj.value = n

    def cuDeviceGetName(self, buffer, size, handle):
        ctypes.memmove(buffer, self.GPUS[handle.value][0], len(self.GPUS[handle.value][0]))

    def cuDeviceGetAttribute(self, value, attribute, handle):
        value._obj.value = self.GPUS[handle.value][{75: 1, 76: 2}[attribute]]


def test_gpus_are_those_of_the_driver():
    assert devices(lambda _: Driver()) == [L4, Device("NVIDIA RTX 5090", "sm120")]
    assert devices(lambda _: Driver(status=100)) == []  # CUDA_ERROR_NO_DEVICE

    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    assert devices(absent) == []
