"""A writer of TensorFlow checkpoints, from the description of the format: what the reader is tested on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from txl_export.checkpoints.crc32c import crc32c
from txl_export.config import ModelConfig

MAGIC = bytes.fromhex("57fb808b247547db")
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def crc32c_by_bits(data: bytes) -> int:
    """Bit by bit, as the polynomial says: what the package's own is compared with, which the writer uses for speed."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(array: np.ndarray, shard: int, offset: int, dtype: int | None = None) -> bytes:
    shape = b"".join(message(2, number(1, n) or b"\x08\x00") for n in array.shape)
    data = array.tobytes()
    numbers = number(3, shard) + number(4, offset) + number(5, len(data))
    kind = DTYPES[array.dtype.name] if dtype is None else dtype
    return number(1, kind) + message(2, shape) + numbers + varint(6 << 3 | 5) + masked(data)


def block(items: list[tuple[bytes, bytes]], compression: int = 0, restart: int = 4) -> bytes:
    out, starts, before = bytearray(), [], b""
    for i, (key, value) in enumerate(items):
        shared = 0
        if i % restart == 0:
            starts.append(len(out))
        else:
            while shared < min(len(before), len(key)) and before[shared] == key[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    for start in starts or [0]:
        out += start.to_bytes(4, "little")
    out += len(starts or [0]).to_bytes(4, "little")
    content = bytes(out) + bytes([compression])
    return content + masked(content)


def table(items: list[tuple[bytes, bytes]], per_block: int = 5, compression: int = 0) -> bytes:
    out, handles = b"", []
    for i in range(0, len(items), per_block):
        part = items[i : i + per_block]
        made = block(part, compression)
        handles.append((part[-1][0], varint(len(out)) + varint(len(made) - 5)))
        out += made
    ends = b""
    for content in (block([]), block(handles, restart=1)):
        ends += varint(len(out)) + varint(len(content) - 5)
        out += content
    return out + ends.ljust(40, b"\0") + MAGIC


def write_bundle(
    prefix: Path, tensors: Mapping[str, np.ndarray], shards: int = 1, header: bytes | None = None, **options
) -> Path:
    """Write PREFIX.index and its data files; the tensors are dealt to the shards in turn."""
    data = [bytearray() for _ in range(shards)]
    items = [(b"", number(1, shards) + message(3, number(1, 1)) if header is None else header)]
    for i, (name, array) in enumerate(sorted(tensors.items())):
        shard = i % shards
        items.append((name.encode(), entry(np.asarray(array, order="C"), shard, len(data[shard]))))
        data[shard] += array.tobytes()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".index").write_bytes(table(items, **options))
    for i, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{i:05d}-of-{shards:05d}").write_bytes(content)
    return prefix


def their_tensors(config: ModelConfig, w: Mapping[str, np.ndarray], same_dim: bool = True) -> dict[str, np.ndarray]:
    """A model's tensors as the authors' TensorFlow code names and turns them.

    Args:
        config: always with tied weights.
        w: its canonical tensors.
        same_dim: the flag `proj_same_dim`; without it cluster 0 has no projection where widths are equal.
    """
    t, out = "transformer/", {}
    for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
        own = [w[f"layers.{n}.attention.{ours}"] for n in range(config.n_layer)] if config.untie_r else []
        out[t + theirs] = np.stack(own) if own else w[ours]
    for n in range(config.n_layer):
        a, f = f"layers.{n}.attention.", f"layers.{n}.feed_forward."
        attention, ff = f"{t}layer_{n}/rel_attn/", f"{t}layer_{n}/ff/"
        out[attention + "qkv/kernel"] = np.concatenate([w[a + x].T for x in ("W_q", "W_kE", "W_v")], axis=1)
        out[attention + "r/kernel"], out[attention + "o/kernel"] = w[a + "W_kR"].T, w[a + "W_o"].T
        for i in (1, 2):
            out[f"{ff}layer_{i}/kernel"], out[f"{ff}layer_{i}/bias"] = w[f"{f}W_{i}"].T, w[f"{f}b_{i}"]
        for scope, ours in ((attention, a), (ff, f)):
            out[scope + "LayerNorm/gamma"], out[scope + "LayerNorm/beta"] = (
                w[ours + "norm.weight"],
                w[ours + "norm.bias"],
            )
    return out | _vocabulary_tensors(config, w, same_dim)


def _vocabulary_tensors(config: ModelConfig, w: Mapping[str, np.ndarray], same_dim: bool) -> dict[str, np.ndarray]:
    embed, softmax, out = "transformer/adaptive_embed/", "transformer/adaptive_softmax/", {}
    ends = config.cluster_ends
    one = config.div_val == 1
    for i in range(1 if one else len(ends) - 1):
        scope = embed if one else f"{embed}cutoff_{i}/"
        out[scope + "lookup_table"] = w[f"embedding.tables.{i}"]
        if config.has_projs and (same_dim or i or config.d_embed != config.d_model):
            out[scope + "proj_W"] = w[f"embedding.projs.{i}"].T
    if not config.n_tails:
        return out | {softmax + "bias": w["softmax.biases.0"]}
    for i in range(len(ends) - 1):
        bias = w["softmax.biases.0"][ends[i] : ends[i + 1]] if one else w[f"softmax.biases.{i}"]
        out[f"{softmax}cutoff_{i}/b"] = bias
        if config.has_projs and not config.tie_projs[i] and (same_dim or i or config.d_embed != config.d_model):
            out[f"{softmax}cutoff_{i}/proj"] = w[f"softmax.projs.{i}"].T
    out[softmax + "cutoff_0/cluster_W"] = w["softmax.cluster_weight"]
    out[softmax + "cutoff_0/cluster_b"] = w["softmax.cluster_bias"]
    return out
