"""Process in which packages are imported to see whether that works: whatever they do, only this process ends.

Is given the name of a module to import, or of the provider to try, and prints one JSON object as the last line: the
version, and what else tells whether backends work.
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

from txl_export.diagnosis.packages import CUDA_PROVIDER, ask
from txl_export.files import first_line

# An ONNX graph of one Identity, float32 [1], opset 13: the least that a provider can be asked to run.
_IDENTITY = (
    b'\x08\x08\x12\x00:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08'
    b"\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
# What ONNX Runtime says of a provider that does not run: a library that is missing, or what CUDA or cuDNN answers.
_CAUSES = (
    r"with error: ([^\n]+)",
    r"(\w+ (?:failure \d+|is unavailable)[^;\n]*)",
    r"Failed to create \w+\. ([^\n]+?\*\.)",
)


def _torch(torch: Any) -> dict[str, Any]:
    return {"cuda": torch.version.cuda}


def _onnxruntime(ort: Any) -> dict[str, Any]:
    """Its providers, and why that for CUDA does not run a graph: None where it does."""
    providers = ort.get_available_providers()
    if CUDA_PROVIDER not in providers:
        return {"providers": providers}
    answer = ask(CUDA_PROVIDER)  # in one more process: what ends there leaves the other providers as they are
    return {"providers": providers, "cuda_provider": answer.get("error")}


def try_provider() -> dict[str, Any]:
    """Run ONNX Runtime's CUDA provider: {"runs": True}, or {"error": one line}.

    A session goes on without a provider that does not load, and tells the log only.
    """
    import onnxruntime as ort

    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # of packages that bring CUDA's libraries
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)  # the library writes there itself
        try:
            if CUDA_PROVIDER in ort.InferenceSession(_IDENTITY, providers=[CUDA_PROVIDER]).get_providers():
                return {"runs": True}
        except Exception as e:
            return {"error": cause(str(e))}
        finally:
            os.dup2(kept, 2)
        log.seek(0)
        return {"error": cause(log.read().decode(errors="replace"))}


def cause(told: str) -> str:
    """The reason in what ONNX Runtime tells of a provider that does not run."""
    found = next((m[1] for pattern in _CAUSES if (m := re.search(pattern, told))), told)
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
    asked = sys.argv[1]
    answer = json.dumps(try_provider() if asked == CUDA_PROVIDER else look(asked))
    print(f"\n{answer}", flush=True)
    os._exit(0)  # what libraries do when they are unloaded says nothing of whether they work
