"""Reading tensors from files without running what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from txl_export.errors import CheckpointError, missing_extra


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file as float32 (integers as they are); raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as f:
            return {name: _float32(_get(f, name), name, path) for name in f.keys()}  # noqa: SIM118 - no __iter__
    except (SafetensorError, OSError, ValueError) as e:
        raise CheckpointError(
            f"{path} is not a readable safetensors file ({str(e).splitlines()[0]})"
        ) from None


def _get(f: object, name: str) -> np.ndarray:
    try:
        return f.get_tensor(name)  # type: ignore[attr-defined, no-any-return]
    except TypeError as e:  # numpy has no bfloat16
        raise ValueError(f"{name}: {e}") from None


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a `torch.save`d state dict, by PyTorch's weights-only reader; raises CheckpointError."""
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "export", f"reading {path.name}") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - weights only: no code runs
    except Exception as e:  # the reader's errors have no common base
        raise CheckpointError(f"{path} is not a readable state dict ({str(e).splitlines()[0]})") from None
    if not isinstance(state, dict) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise CheckpointError(f"{path} holds {type(state).__name__}, expected a dict of names to tensors")
    return {
        str(k): _float32(t.float().numpy() if t.is_floating_point() else t.numpy(), k, path)
        for k, t in state.items()
    }


def _float32(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, dtype=np.float32)
    if array.dtype.kind in "iub":
        return array
    raise CheckpointError(f"{path}: {name} has dtype {array.dtype}, expected floating point")


def first_present(tensors: dict[str, np.ndarray], names: Iterable[str]) -> str | None:
    """The first of `names` that the file holds."""
    return next((n for n in names if n in tensors), None)
