"""What executes graphs: one line per backend in `BACKENDS`, a module or an object in one."""

from __future__ import annotations

import importlib

from txl_export.backends.base import Backend, LoadedModel, Streams
from txl_export.bundle import Bundle
from txl_export.checkpoints.base import Checkpoint
from txl_export.errors import EnvironmentMismatch, InputError

__all__ = ["BACKENDS", "GPU_BACKENDS", "Backend", "LoadedModel", "Streams", "backend", "refusal"]

# Fastest first: `Engine.load` takes the first that can run what it is given.
BACKENDS: dict[str, str] = {
    "tensorrt": "txl_export.backends.tensorrt:TENSORRT",
    "tensorrt-rtx": "txl_export.backends.tensorrt:TENSORRT_RTX",
    "onnxruntime-cuda": "txl_export.backends.onnxruntime_cuda",
    "onnxruntime": "txl_export.backends.onnxruntime",
    "typed": "txl_export.backends.typed",
    "eager": "txl_export.backends.eager",
}
# Those that need a GPU: each has `check(bundle, batch_sizes)`, which raises what its `refuses` tells in few words.
GPU_BACKENDS = ("tensorrt", "tensorrt-rtx", "onnxruntime-cuda")


def backend(name: str) -> Backend:
    """The backend of a name, imported now; raises InputError for an unknown name."""
    if name not in BACKENDS:
        raise InputError(f"backend {name!r} is unknown: use one of {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    found: Backend = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def refusal(name: str, source: Bundle | Checkpoint) -> str | None:
    """In a few words why a backend does not run a source on this machine, or cannot be imported; None where it runs."""
    try:
        return backend(name).refuses(source)
    except EnvironmentMismatch as e:
        return e.short
