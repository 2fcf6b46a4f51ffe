"""Process in which packages are imported to see whether that works: whatever they do, only this process ends.

Imports one module and prints one JSON object as the last line: its version, and what else tells whether backends work.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from txl_export.files import first_line

CUDA_PROVIDER = "CUDAExecutionProvider"
# An ONNX graph of one Identity, float32 [1], opset 13: the least that a provider can be asked to run.
_IDENTITY = (
    b'\x08\x08\x12\x00:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08'
    b"\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
# What ONNX Runtime says of a provider that it goes on without: a library that is missing, or what CUDA answers.
_CAUSES = (r"with error: ([^\n]+)", r"(CUDA failure \d+: [^;\n]+)", r"Failed to create \w+\. ([^\n]+?\*\.)")


def _torch(torch: Any) -> dict[str, Any]:
    return {"cuda": torch.version.cuda}


def _onnxruntime(ort: Any) -> dict[str, Any]:
    providers = ort.get_available_providers()
    tried = {"cuda_provider": _cuda_provider(ort)} if CUDA_PROVIDER in providers else {}
    return {"providers": providers, **tried}


def _cuda_provider(ort: Any) -> str | None:
    """Why a graph does not run on the CUDA provider; None where it does. A session goes on without it and logs that."""
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # of packages that bring CUDA's libraries
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)  # the library writes there itself
        try:
            providers = ort.InferenceSession(_IDENTITY, providers=[CUDA_PROVIDER]).get_providers()
        except Exception as e:
            return first_line(e)
        finally:
            os.dup2(kept, 2)
        log.seek(0)
        return None if CUDA_PROVIDER in providers else cause(log.read().decode(errors="replace"))


def cause(log: str) -> str:
    """The reason in what ONNX Runtime logged when it left a provider out."""
    found = next((m[1] for pattern in _CAUSES if (m := re.search(pattern, log))), "")
    return first_line(Exception(found.strip() or "it is left out without a reason"))


# What is asked of a module besides its version.
_DETAILS: dict[str, Callable[[Any], dict[str, Any]]] = {"torch": _torch, "onnxruntime": _onnxruntime}


def look(module: str) -> dict[str, Any]:
    """Import a module: its version and details, or {"absent": True}, or {"error": one line}."""
    try:
        found = importlib.import_module(module)
        details = _DETAILS.get(module, lambda _: {})(found)
    except ModuleNotFoundError as e:
        absent = e.name is not None and f"{module}.".startswith(f"{e.name}.")
        return {"absent": True} if absent else {"error": first_line(e)}
    except BaseException as e:  # whatever a package may raise, SystemExit too
        return {"error": first_line(e if isinstance(e, Exception) else Exception(f"it raises {type(e).__name__}"))}
    return {"version": str(getattr(found, "__version__", "")), "details": details}


if __name__ == "__main__":
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    answer = json.dumps(look(sys.argv[1]))
    print(f"\n{answer}", flush=True)
    os._exit(0)  # what libraries do when they are unloaded says nothing of whether they work
