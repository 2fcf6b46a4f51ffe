"""Saved sessions: one safetensors file with the memory, the positions and what they belong to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.backends.base import Arrays, ModelInfo
from txl_export.errors import InputError
from txl_export.files import write_atomic
from txl_export.layouts import layout_of

FORMAT = "txl-export-session"
SCHEMA = 1
MOST_TOKENS = 2**62  # half of what a position can count


def save(path: Path, info: ModelInfo, batch_size: int, state: Arrays) -> None:
    """Write a session's state, replacing the file in one step."""
    from safetensors.numpy import save as to_bytes

    # It writes numbers in the order in which they lie in memory, whatever order the array has them in.
    arrays = {name: np.ascontiguousarray(a) for name, a in state.items()}
    write_atomic(path, to_bytes(arrays, {"session": json.dumps(_identity(info, batch_size))}))


def _identity(info: ModelInfo, batch_size: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "layout": info.layout,
        "mem_len": info.mem_len,
        "model": info.identity,
        "batch_size": batch_size,
    }


def load(path: Path, info: ModelInfo) -> tuple[int, int, Arrays]:
    """Read a session that this model saved.

    Returns:
        batch size, tokens that it remembers, and state.

    Raises:
        InputError: not a saved session, damaged, or of another model, layout or M.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as f:
            saved = json.loads((f.metadata() or {}).get("session", "{}"))
            state = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - no __iter__
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: give a file that a session was saved to") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as e:
        raise InputError(f"{path} is not a saved session ({str(e).splitlines()[0]})") from None
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise InputError(f"{path} is not a saved session: save one with session.save(path)")
    mem_len = saved.get("mem_len")
    if layout_of(info.layout).in_place and type(mem_len) is int and 0 <= mem_len < info.mem_len:
        info = replace(info, mem_len=mem_len)
    for key, ours in _identity(info, saved.get("batch_size", 0)).items():
        if saved.get(key) != ours:
            raise InputError(
                f"{path} was saved with {key} {saved.get(key)!r}, this engine has {ours!r}: "
                "load the engine that saved it"
            )
    batch_size = saved.get("batch_size")
    if type(batch_size) is not int or not 1 <= batch_size <= info.max_batch:
        raise InputError(f"{path} is damaged: its batch_size is {batch_size!r}")
    return batch_size, info.mem_len, state


def check_state(path: Path, state: Arrays, like: Arrays, mem_len: int, grows: bool) -> None:
    """The state has the tensors, shapes and dtypes of `like`.

    Args:
        path: the file, for messages.
        state: what was read.
        like: the state of a fresh session.
        mem_len: M.
        grows: whether memory tensors may hold any number of rows up to M.

    Raises:
        InputError: it does not fit, or holds NaN or Inf.
    """
    for name, array in like.items():
        found = state.get(name)
        shape = found.shape if found is not None else None
        if grows and shape is not None and len(shape) == array.ndim > 1 and shape[1] <= mem_len:
            shape = (shape[0], array.shape[1], *shape[2:])
        if found is None or found.dtype != array.dtype or shape != array.shape:
            raise InputError(f"{path} is damaged: {name} does not fit this engine")
        if array.dtype.kind == "f" and not np.isfinite(found).all():
            raise InputError(f"{path} is damaged: {name} holds NaN or Inf")
    positions, start = state["positions"], like["positions"]  # a fresh session is at its start
    if (positions < start).any() or (positions > MOST_TOKENS).any():
        raise InputError(f"{path} is damaged: positions lie before the start or beyond any stream")
    if (state.get("oldest", np.int64(0)) > np.maximum(positions - mem_len, 0)).any():  # layout `ring` tells
        raise InputError(f"{path} is damaged: it lacks rows that its streams see")
