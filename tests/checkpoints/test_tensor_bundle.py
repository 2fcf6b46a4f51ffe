"""The reader of TensorFlow's files: types, checksums, damage of every kind."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.checkpoints import tensorflow_bundles as tf
from tests.helpers import random_weights, tiny_config
from txl_export import TxlError, load_checkpoint
from txl_export.checkpoints.crc32c import crc32c
from txl_export.checkpoints.tensor_bundle import TensorBundle
from txl_export.errors import CheckpointError

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("size", [0, 1, 3, 1023, 1024, 1025, 4096, 70_001])
def test_checksums(size):
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == tf.crc32c_by_bits(data)


def test_checksum_of_the_standard_and_of_more_than_one_block_of_parts():
    assert crc32c(b"123456789") == 0xE3069283
    data = bytes(8192 * 64 + 5)  # zeros but for the end: a part that is left out shows
    assert crc32c(data[:-9] + b"123456789") != crc32c(data)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32"])
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_of_every_type_and_shard(tmp_path, dtype, shards):
    tensors = {f"layer/{i}/kernel": (ARRAY + i).astype(dtype) for i in range(23)} | {"scalar": np.array(3, dtype)}
    bundle = TensorBundle(tf.write_bundle(tmp_path / "m", tensors, shards))
    assert bundle.entries.keys() == tensors.keys()
    for name, array in tensors.items():
        found = bundle.read(name)
        assert found.dtype == (np.float32 if "float" in dtype else dtype)
        assert found.shape == array.shape and np.array_equal(found, array)


def test_bfloat16(tmp_path):
    halves = (ARRAY.view(np.uint32) >> 16).astype("<u2")
    prefix = tf.write_bundle(tmp_path / "m", {})
    items = [(b"", tf.number(1, 1)), (b"w", tf.entry(halves, 0, 0, dtype=14))]
    (tmp_path / "m.index").write_bytes(tf.table(items))
    (tmp_path / "m.data-00000-of-00001").write_bytes(halves.tobytes())
    assert np.array_equal(TensorBundle(prefix).read("w"), ARRAY)


def refused(prefix, *words, name=None):
    with pytest.raises(CheckpointError) as e:
        bundle = TensorBundle(prefix)
        bundle.read(name or "w")
    assert "\n" not in str(e.value)
    for word in words:
        assert word in str(e.value)


def indexed(tmp_path, value: bytes, data: bytes = ARRAY.tobytes(), header: bytes | None = None, **options):
    header = tf.number(1, 1) if header is None else header
    (tmp_path / "m.index").write_bytes(tf.table([(b"", header), (b"w", value)], **options))
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    return tmp_path / "m"


def test_what_an_index_may_not_say(tmp_path):
    good = tf.entry(ARRAY, 0, 0)
    assert np.array_equal(TensorBundle(indexed(tmp_path, good)).read("w"), ARRAY)
    refused(indexed(tmp_path, good, compression=1), "compressed (type 1)")
    refused(indexed(tmp_path, good, header=tf.number(1, 1) + tf.number(2, 1)), "big-endian")
    refused(indexed(tmp_path, good, header=b""), "names 0 data files")
    refused(indexed(tmp_path, good + tf.message(7, b"x")), "slices")
    refused(indexed(tmp_path, tf.entry(ARRAY, 0, 0, dtype=7)), "the number 7")
    refused(indexed(tmp_path, tf.entry(ARRAY, 1, 0)), "data-00001-of-00001", "No such file")
    refused(indexed(tmp_path, tf.entry(ARRAY, 0, 1 << 60)), "truncated")
    refused(indexed(tmp_path, good.replace(tf.number(5, 48), tf.number(5, 44))), "44 bytes, 48 expected")
    refused(indexed(tmp_path, tf.number(1, 1) + tf.message(2, tf.message(2, tf.number(1, 1 << 63)))), "dimension")
    refused(indexed(tmp_path, tf.number(1, 1) + tf.number(2, 3)), "another type")
    refused(indexed(tmp_path, tf.number(1, 1) + tf.message(2, tf.message(2, b"\x08\x01") * 33)), "33 dimensions")


def test_a_changed_byte_of_a_tensor_or_of_the_index_is_noticed(tmp_path):
    prefix = indexed(tmp_path, tf.entry(ARRAY, 0, 0))
    data, index = tmp_path / "m.data-00000-of-00001", tmp_path / "m.index"
    for file, word in ((data, "checksum"), (index, "checksum of a block")):
        good = file.read_bytes()
        file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        refused(prefix, word)
        file.write_bytes(good)
    data.write_bytes(data.read_bytes()[:-1])
    refused(prefix, "truncated")
    index.write_bytes(index.read_bytes()[:-1])
    refused(prefix, "does not end as a table does")


def test_a_list_of_one_block_many_times_is_not_followed(tmp_path):
    block = tf.block([(b"a", b"")])
    handles = tf.block([(f"{i:03d}".encode(), tf.varint(0) + tf.varint(len(block) - 5)) for i in range(500)])
    footer = tf.varint(0) * 2 + tf.varint(len(block)) + tf.varint(len(handles) - 5)
    (tmp_path / "m.index").write_bytes(block + handles + footer.ljust(40, b"\0") + tf.MAGIC)
    refused(tmp_path / "m", "larger than the file")


def _mutated(good: bytes, rng: random.Random) -> bytes:
    out = bytearray(good)
    for _ in range(rng.choice((1, 1, 2, 8))):
        i = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[i] ^= 1 << rng.randrange(8)
            case 1:
                out[i] = rng.choice((0, 0x7F, 0x80, 0xFF))
            case 2:
                del out[i : i + rng.randrange(1, 40)]
            case _:
                out[i:i] = rng.randbytes(rng.randrange(1, 20))
        if not out:
            break
    return bytes(out)


def _checksummed(index: bytes, rng: random.Random) -> bytes:
    """A table whose blocks are mutated inside and then get the right checksums, so that what they say is read."""
    items = [(f"k{i}".encode(), rng.randbytes(rng.randrange(100))) for i in range(rng.randrange(6))]
    config = tiny_config()
    entries = [
        (n.encode(), tf.entry(x, 0, 0)) for n, x in sorted(tf.their_tensors(config, random_weights(config)).items())
    ]
    mutated = [(k, _mutated(v, rng) if rng.random() < 0.1 else v) for k, v in entries]
    return tf.table([(b"", _mutated(tf.number(1, 1), rng)), *mutated, *items], per_block=rng.choice((1, 3, 99)))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_end_in_a_model_or_in_one_line(tmp_path, seed):
    config, rng = tiny_config(n_layer=1), random.Random(seed)
    tensors = tf.their_tensors(config, random_weights(config))
    prefix = tf.write_bundle(tmp_path / "m", tensors, per_block=6)
    index, data = tmp_path / "m.index", tmp_path / "m.data-00000-of-00001"
    good_index, good_data = index.read_bytes(), data.read_bytes()
    for round_ in range(100):
        which = round_ % 3
        index.write_bytes((_mutated(good_index, rng), _checksummed(good_index, rng), good_index)[which])
        data.write_bytes(_mutated(good_data, rng) if which == 2 else good_data)
        try:
            load_checkpoint(prefix)
        except TxlError as e:
            assert "\n" not in str(e) and len(str(e)) < 500
