"""What executes graphs: one line per backend in `BACKENDS`, a module or an object in one."""

from __future__ import annotations

import importlib

from txl_export.backends.base import Backend, LoadedModel, Streams
from txl_export.errors import InputError

__all__ = ["BACKENDS", "Backend", "LoadedModel", "Streams", "backend"]

# Fastest first: `Engine.load` takes the first that can run what it is given.
BACKENDS: dict[str, str] = {
    "onnxruntime": "txl_export.backends.onnxruntime",
    "typed": "txl_export.backends.typed",
    "eager": "txl_export.backends.eager",
    "tensorrt": "txl_export.backends.tensorrt:TENSORRT",
    "tensorrt-rtx": "txl_export.backends.tensorrt:TENSORRT_RTX",
}


def backend(name: str) -> Backend:
    """The backend of a name, imported now; raises InputError for an unknown name."""
    if name not in BACKENDS:
        raise InputError(f"backend {name!r} is unknown: use one of {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    found: Backend = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
