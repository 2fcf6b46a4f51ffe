"""Numbers of types that numpy has not, as a GPU's memory holds them: those of PyTorch, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txl_export.backends.device.memory import Numbers

BF16 = Numbers("bfloat16")
# Between two numbers of bfloat16, exactly and nearly; the largest, the smallest, and what is not finite.
EDGES = [
    0x00000000, 0x80000000, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x3F818001, 0xBF808000,
    0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x00000001, 0x00008000, 0x00008001,
    0x007FFFFF, 0x80018000, 0x00800000, 0x7F800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F80FFFF,
]  # fmt: skip


def by_torch(seen: np.ndarray) -> np.ndarray:
    bits: np.ndarray = torch.from_numpy(seen).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return bits


def agree(bits: list[int]) -> None:
    seen = np.array(bits, np.uint32).view(np.float32)
    stored = BF16.encode(seen)
    assert stored.dtype == np.uint16 and stored.shape == seen.shape
    back, numbers = BF16.decode(stored), ~np.isnan(seen)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(stored[numbers], by_torch(seen)[numbers])
    assert np.isnan(back[~numbers]).all()
    expected = torch.from_numpy(seen).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(back, expected)
    np.testing.assert_array_equal(BF16.encode(back)[numbers], stored[numbers])  # nothing is lost a second time


def test_edges() -> None:
    agree(EDGES)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_any_numbers(bits: list[int]) -> None:
    agree(bits)


def test_every_stored_number_comes_back() -> None:
    stored = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    seen = BF16.decode(stored)
    numbers = ~np.isnan(seen)
    assert (~numbers).sum() == 2 * 127
    np.testing.assert_array_equal(BF16.encode(seen)[numbers], stored[numbers])


def test_parts_of_larger_arrays_and_single_values() -> None:
    whole = np.random.default_rng(0).standard_normal((3, 8, 4)).astype(np.float32)
    for seen in (whole[:, ::2], whole.T, np.broadcast_to(whole[:1], whole.shape)):
        np.testing.assert_array_equal(BF16.encode(seen), by_torch(np.ascontiguousarray(seen)))


@pytest.mark.parametrize("name", ["float32", "float16", "int8"])
def test_types_that_numpy_has_are_stored_as_they_are(name: str) -> None:
    numbers, seen = Numbers(name), np.arange(-3, 3).astype(name)
    assert numbers.stored == numbers.seen == np.dtype(name)
    assert numbers.encode(seen).dtype == name
    np.testing.assert_array_equal(numbers.decode(numbers.encode(seen)), seen)
