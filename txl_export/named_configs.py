"""Published configurations by name, with the evaluation values of their papers and scripts.

Sources: kimiyoung/transformer-xl `pytorch/scripts/run_*_{base,large}.sh` and `tf/sota/`, and NVIDIA
DeepLearningExamples `Transformer-XL/pytorch/wt103_*.yaml`.
"""

from __future__ import annotations

from typing import Any

from txl_export.config import Dialect, ModelConfig
from txl_export.errors import ConfigError

_WT103: dict[str, Any] = {
    "vocab_size": 267735,
    "cutoffs": (20000, 40000, 200000),
    "tie_projs": (False, True, True, True),
    "same_length": True,
}
_LARGE = {"n_layer": 18, "d_model": 1024, "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4}
_CHARS_LARGE: dict[str, Any] = {
    "n_layer": 24, "d_model": 1024, "n_head": 8, "d_head": 128, "d_inner": 3072,
    "mem_len": 3800, "clamp_len": 1000, "same_length": True,
}  # fmt: skip

_CONFIGS: dict[str, dict[str, Any]] = {
    "wt103-base": _WT103
    | {"n_layer": 16, "d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100, "mem_len": 640, "clamp_len": 400},
    "wt103-large": _WT103 | _LARGE | {"mem_len": 1600, "clamp_len": 1000},
    "nvidia-wt103-base": _WT103
    | {"n_layer": 16, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048, "mem_len": 640, "clamp_len": 400}
    | {"cutoffs": (19997, 39997, 199997)},
    "enwik8-base": {
        "vocab_size": 204, "n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048,
        "mem_len": 2100, "clamp_len": 820, "same_length": True,
    },
    "enwik8-large": _CHARS_LARGE | {"vocab_size": 204},
    "text8-large": _CHARS_LARGE | {"vocab_size": 27},
    "lm1b-large": {
        "vocab_size": 793471, "cutoffs": (60000, 100000, 640000), "tie_projs": (False,) * 4, "div_val": 4,
        "n_layer": 24, "d_model": 1280, "n_head": 16, "d_head": 80, "d_inner": 8192, "mem_len": 128,
        "clamp_len": -1, "same_length": True,
    },
}  # fmt: skip

# kimiyoung's dialect; NVIDIA's differs in the window.
_DIALECT = Dialect(initial_memory="empty", cluster_order="reversed")
_DIALECTS = {"nvidia-wt103-base": Dialect(initial_memory="empty", cluster_order="reversed", window_extra=1)}


def config_names() -> list[str]:
    """Names that `named_config` knows."""
    return sorted(_CONFIGS)


def named_config(name: str) -> tuple[ModelConfig, Dialect]:
    """Configuration and dialect of a published model.

    Raises:
        ConfigError: for an unknown name; the message lists the known ones.
    """
    if name not in _CONFIGS:
        raise ConfigError(f"no configuration is named {name!r}: known are {', '.join(config_names())}")
    return ModelConfig(**_CONFIGS[name]), _DIALECTS.get(name, _DIALECT)
