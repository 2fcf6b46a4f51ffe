"""Reading of sorted-string tables, the files in which LevelDB and TensorFlow's checkpoints keep key and value.

A table is blocks and a footer. A block is entries of (bytes shared with the key before, own bytes of the key,
bytes of the value) and ends with restart points, which only searching needs. The footer names the block of blocks.
Source: LevelDB's `doc/table_format.md`. Every length is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from txl_export.checkpoints.crc32c import masked_crc32c

MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48
_TRAILER = 5  # after each block: how it is compressed, and its checksum
_VARINT_BITS = 64


class Damaged(Exception):
    """What is wrong with some bytes, in a few words; the caller knows what file they are."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits per byte, lowest first, and where it ends; raises Damaged."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        if at >= len(data):
            raise Damaged("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Damaged("a number has no end")


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in its order; raises Damaged."""
    if len(data) < _FOOTER or not data.endswith(MAGIC):
        raise Damaged("it does not end as a table does")
    footer = data[-_FOOTER:]
    _, at = _handle(footer, 0)
    (start, size), _ = _handle(footer, at)
    blocks = 0
    for _, handle in _entries(_block(data, start, size)):
        (start, size), _ = _handle(handle, 0)
        # Blocks lie one after another: a damaged list that names them again and again must not be followed.
        blocks += size + _TRAILER
        if blocks > len(data):
            raise Damaged("its blocks are larger than the file")
        yield from _entries(_block(data, start, size))


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    start, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (start, size), at


def _block(data: bytes, start: int, size: int) -> bytes:
    if start + size + _TRAILER > len(data) - _FOOTER:
        raise Damaged("a block lies outside the file")
    end = start + size
    compression = data[end]
    if compression:
        raise Damaged(f"a block is compressed (type {compression}), which TensorFlow's checkpoints are not")
    if masked_crc32c(data[start : end + 1]) != int.from_bytes(data[end + 1 : end + _TRAILER], "little"):
        raise Damaged("the checksum of a block differs")
    return data[start:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    n_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (n_restarts + 1)
    if len(block) < 4 or end < 0:
        raise Damaged("a block has more restart points than bytes")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        own, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise Damaged("an entry lies outside its block")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length
