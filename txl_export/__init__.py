"""Takes a trained Transformer-XL into production: loads it, exports it with its memory, runs and verifies it.

Everything is imported when first used; the runtime path (`Engine`, sessions) imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txl_export._version import __version__
from txl_export.errors import (
    BuildError,
    BundleError,
    CheckpointError,
    ConfigError,
    EnvironmentMismatch,
    ExportError,
    InputError,
    ToleranceError,
    TxlError,
)

if TYPE_CHECKING:
    from txl_export.benchmarking import bench
    from txl_export.building import build
    from txl_export.bundle import Bundle
    from txl_export.checkpoints import Checkpoint, load_checkpoint
    from txl_export.checkpoints.converting import convert
    from txl_export.config import Dialect, ModelConfig
    from txl_export.diagnosis import doctor
    from txl_export.graphs.export import export
    from txl_export.named_configs import config_names, named_config
    from txl_export.random_weights import random_checkpoint
    from txl_export.reference import TransformerXL
    from txl_export.reporting import report
    from txl_export.runtime import Engine, Session, TopK
    from txl_export.verification import verify

_LAZY = {
    "Bundle": "txl_export.bundle",
    "Checkpoint": "txl_export.checkpoints",
    "Dialect": "txl_export.config",
    "Engine": "txl_export.runtime",
    "ModelConfig": "txl_export.config",
    "Session": "txl_export.runtime",
    "TopK": "txl_export.runtime",
    "TransformerXL": "txl_export.reference",
    "bench": "txl_export.benchmarking",
    "build": "txl_export.building",
    "convert": "txl_export.checkpoints.converting",
    "config_names": "txl_export.named_configs",
    "doctor": "txl_export.diagnosis",
    "export": "txl_export.graphs.export",
    "load_checkpoint": "txl_export.checkpoints",
    "named_config": "txl_export.named_configs",
    "random_checkpoint": "txl_export.random_weights",
    "report": "txl_export.reporting",
    "verify": "txl_export.verification",
}
_NEEDS_EXPORT_EXTRA = {"TransformerXL", "export"}

__all__ = [
    "BuildError",
    "Bundle",
    "BundleError",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "Dialect",
    "Engine",
    "EnvironmentMismatch",
    "ExportError",
    "InputError",
    "ModelConfig",
    "Session",
    "ToleranceError",
    "TopK",
    "TransformerXL",
    "TxlError",
    "__version__",
    "bench",
    "build",
    "config_names",
    "convert",
    "doctor",
    "export",
    "load_checkpoint",
    "named_config",
    "random_checkpoint",
    "report",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'txl_export' has no attribute {name!r}")
    try:
        module = importlib.import_module(_LAZY[name])
    except ImportError as e:
        if name in _NEEDS_EXPORT_EXTRA and e.name in ("torch", "onnx", "onnx_ir", "onnxscript"):
            from txl_export.errors import missing_extra

            raise missing_extra(e.name, "export", name) from None
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value
