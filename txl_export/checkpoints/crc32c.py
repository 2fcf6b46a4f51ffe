"""CRC-32C (Castagnoli), the checksum of TensorFlow's checkpoints, over arrays: Python brings none.

A checksum is linear: parts of the data are folded side by side, one numpy operation for all of them, and joined
pairwise. Leading zeros leave a state of zero as it is, so that the data may be padded in front.
"""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78
_START = 0xFFFFFFFF
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_LANES = 8192  # parts that large data is folded in: few enough to stay in the processor's caches
_CACHE_LINE = 16  # words that are brought to the processor together
_SHORT = 1024  # bytes below which one after another is faster
_PART = 64  # bytes that the length of a part is a multiple of


def crc32c(data: bytes | memoryview) -> int:
    """The checksum of some bytes."""
    n = len(data)
    if n < _SHORT:
        return _bytewise(data)
    length = -(-n // (_LANES * _PART)) * _PART
    lanes = 1 << (-(-n // length) - 1).bit_length()
    padded = np.zeros(lanes * length, dtype=np.uint8)
    own = padded[padded.size - n :]
    own[:] = np.frombuffer(data, dtype=np.uint8)
    own[:4] ^= 0xFF  # the same as a state that starts with all bits set
    states = _fold(padded.view("<u4").reshape(lanes, -1))
    return int(_join(states, length)) ^ _START


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum in the form that TensorFlow's files store: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bytewise(data: bytes | memoryview) -> int:
    table, crc = _byte_list(), _START
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _START


def _fold(words: np.ndarray) -> np.ndarray:
    """Checksum state of each row, from zero: uint32 [lanes, n] -> [lanes]."""
    low, high = _half_tables()
    state = np.zeros(len(words), dtype="<u4")
    for first in range(0, words.shape[1], _CACHE_LINE):
        for column in np.ascontiguousarray(words[:, first : first + _CACHE_LINE].T):
            halves = (state ^ column).view("<u2").astype(np.intp)  # wide indices: numpy would widen them slower
            state = np.take(low, halves[0::2], mode="clip") ^ np.take(high, halves[1::2], mode="clip")
    return state


def _join(state: np.ndarray, length: int) -> np.uint32:
    """Checksum state of rows of `length` bytes one after another."""
    while len(state) > 1:
        state = _apply(_shift_by(length), state[0::2]) ^ state[1::2]
        length *= 2
    return np.uint32(state[0])


def _apply(images: np.ndarray, state: np.ndarray) -> np.ndarray:
    """A linear map, given by the images of the 32 bits, of many states: uint32 [32], [n] -> [n]."""
    is_set = (state[:, None] & _BITS).astype(bool)
    return np.bitwise_xor.reduce(np.where(is_set, images, np.uint32(0)), axis=1)


@functools.lru_cache(maxsize=256)
def _shift_by(n: int) -> np.ndarray:
    """Images of the 32 bits under n bytes of zeros."""
    if n == 1:
        return _byte_table()[_BITS & np.uint32(0xFF)] ^ _BITS >> np.uint32(8)
    half = _shift_by(n // 2)
    images = _apply(half, half)
    return _apply(_shift_by(1), images) if n % 2 else images


@functools.cache
def _byte_table() -> np.ndarray:
    state = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        state = np.where(state & np.uint32(1), state >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), state >> np.uint32(1))
    return state


@functools.cache
def _byte_list() -> list[int]:
    numbers: list[int] = _byte_table().tolist()
    return numbers


@functools.cache
def _half_tables() -> tuple[np.ndarray, np.ndarray]:
    """What four bytes of zeros make of the lower and of the upper 16 bits of a state."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    images = _shift_by(4)
    return _apply(images, halves), _apply(images, halves << np.uint32(16))
