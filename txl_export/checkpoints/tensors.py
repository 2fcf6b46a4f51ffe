"""Reading tensors from files without running what is in them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.errors import CheckpointError
from txl_export.files import first_line, write_atomic

# What a safetensors file may hold: floating point of any width, and integers (masks, counters).
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file as float32 (integers as they are); raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as f:
            dtypes = {name: f.get_slice(name).get_dtype() for name in f.keys()}  # noqa: SIM118 - no __iter__
            for name, dtype in dtypes.items():
                if dtype not in _DTYPES:
                    raise CheckpointError(f"{path}: {name} has dtype {dtype}, expected one of {', '.join(_DTYPES)}")
            plain = {name: f.get_tensor(name) for name, dtype in dtypes.items() if dtype != "BF16"}
        halves = _read_bfloat16(path, [name for name, dtype in dtypes.items() if dtype == "BF16"])
    except (SafetensorError, OSError, ValueError) as e:
        raise CheckpointError(f"{path} is not a readable safetensors file ({first_line(e)})") from None
    return {name: to_float32((halves if name in halves else plain)[name], name, path) for name in dtypes}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as float32, atomically and one after the other: the package's own writer makes copies of them all.

    Args:
        path: the file.
        tensors: by name.
        metadata: what the file says of itself.

    Raises:
        EnvironmentMismatch: a full disk, or a place that takes no files.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    ordered = sorted(tensors.items())  # equal tensors give equal files
    for name, array in ordered:
        start, end = end, end + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight
    arrays = (np.ascontiguousarray(a, dtype="<f4").reshape(-1).view(np.uint8).data for _, a in ordered)
    write_atomic(path, itertools.chain((len(text).to_bytes(8, "little"), text), arrays))


def _read_bfloat16(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Tensors of a file that `safe_open` has accepted, widened by hand: numpy has no bfloat16."""
    out = {}
    with path.open("rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        for name in names:
            start, end = header[name]["data_offsets"]
            f.seek(8 + size + start)
            halves = np.frombuffer(f.read(end - start), dtype="<u2")
            out[name] = widen_bfloat16(halves).reshape(header[name]["shape"])
    return out


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers of bfloat16's bits, uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_float32(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Floating point of any width as contiguous float32, integers as they are; raises CheckpointError for others."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes Inf, which the weights' check names
            return np.asarray(array, dtype=np.float32, order="C")
    if array.dtype.kind in "iub":
        return array
    raise CheckpointError(f"{path}: {name} has dtype {array.dtype}, expected floating point")
