"""Published configurations by name, ORIGIN/MODEL, with the evaluation values of their papers and scripts.

Sources: kimiyoung/transformer-xl `pytorch/run_*.sh`, `tf/scripts/` and `tf/sota/`, NVIDIA DeepLearningExamples
`PyTorch/LanguageModeling/Transformer-XL/pytorch/wt103_*.yaml`, and transformers' `TransfoXLConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from txl_export.config import Dialect, ModelConfig
from txl_export.errors import ConfigError

# Each origin's behaviours, as `txl_export.checkpoints` reads them of its files.
_DIALECTS = {
    "kimiyoung": Dialect(initial_memory="empty", window_extra=0, cluster_order="reversed"),
    "nvidia": Dialect(initial_memory="empty", window_extra=1, cluster_order="reversed"),
    "huggingface": Dialect(initial_memory="zeros", window_extra=0, cluster_order="forward"),
}

_WT103: dict[str, Any] = {
    "vocab_size": 267735,
    "cutoffs": (20000, 40000, 200000),
    "tie_projs": (False, True, True, True),
    "same_length": True,
}
_NVIDIA = _WT103 | {"cutoffs": (19997, 39997, 199997)}
_WT103_BASE = {"n_layer": 16, "mem_len": 640, "clamp_len": 400}
_WT103_LARGE = {
    "n_layer": 18, "d_model": 1024, "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4,
    "mem_len": 1600, "clamp_len": 1000,
}  # fmt: skip
_CHARS_LARGE: dict[str, Any] = {
    "n_layer": 24, "d_model": 1024, "n_head": 8, "d_head": 128, "d_inner": 3072,
    "mem_len": 3800, "clamp_len": 1000, "same_length": True,
}  # fmt: skip

_CONFIGS: dict[str, dict[str, Any]] = {
    "kimiyoung/wt103-base": _WT103 | _WT103_BASE | {"d_model": 410, "n_head": 10, "d_head": 41, "d_inner": 2100},
    "kimiyoung/wt103-large": _WT103 | _WT103_LARGE,
    "kimiyoung/enwik8-base": {
        "vocab_size": 204, "n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048,
        "mem_len": 2100, "clamp_len": 820, "same_length": True,
    },
    "kimiyoung/enwik8-large": _CHARS_LARGE | {"vocab_size": 204},
    "kimiyoung/text8-large": _CHARS_LARGE | {"vocab_size": 27},
    "kimiyoung/lm1b-large": {
        "vocab_size": 793471, "cutoffs": (60000, 100000, 640000), "tie_projs": (False,) * 4, "div_val": 4,
        "n_layer": 24, "d_model": 1280, "n_head": 16, "d_head": 80, "d_inner": 8192, "mem_len": 128,
        "clamp_len": -1, "same_length": True,
    },
    "nvidia/wt103-base": _NVIDIA | _WT103_BASE | {"d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048},
    "nvidia/wt103-large": _NVIDIA | _WT103_LARGE,
    "huggingface/transfo-xl-wt103": _WT103 | _WT103_LARGE | {"untie_r": True},
}  # fmt: skip

# Where the figures stand, of the architecture and of evaluation.
_SOURCES = {
    "kimiyoung/wt103-base": "pytorch/run_wt103_base.sh",
    "kimiyoung/wt103-large": "pytorch/run_wt103_large.sh, evaluated as tf/sota/wt103.sh",
    "kimiyoung/enwik8-base": "pytorch/run_enwik8_base.sh",
    "kimiyoung/enwik8-large": "tf/sota/enwik8.sh; its PyTorch code's behaviours",
    "kimiyoung/text8-large": "tf/sota/text8.sh; its PyTorch code's behaviours",
    # The published weights are those of the TensorFlow code, which unties u and v and starts from zeros.
    "kimiyoung/lm1b-large": "tf/sota/lm1b.sh; its PyTorch code's behaviours, u and v shared by all layers",
    "nvidia/wt103-base": "wt103_base.yaml",
    "nvidia/wt103-large": "wt103_large.yaml",
    "huggingface/transfo-xl-wt103": "the defaults of TransfoXLConfig",
}


@dataclass(frozen=True)
class Published:
    """A published model without its weights.

    Attributes:
        name: ORIGIN/MODEL.
        config: the architecture, with the evaluation values of its paper or scripts.
        dialect: the behaviours of its origin.
        source: where the figures stand.
    """

    name: str
    config: ModelConfig
    dialect: Dialect
    source: str

    @property
    def origin(self) -> str:
        """The implementation, a key of `txl_export.checkpoints.ORIGINS`."""
        return self.name.partition("/")[0]


def config_names() -> list[str]:
    """Names that `named_config` knows."""
    return sorted(_CONFIGS)


def published(name: str) -> Published:
    """A published model by name.

    Raises:
        ConfigError: for an unknown name; the message lists those that end like it, or all.
    """
    if name not in _CONFIGS:
        alike = [known for known in config_names() if known.partition("/")[2] == name.rpartition("/")[2]]
        raise ConfigError(f"no configuration is named {name!r}: use {' or '.join(alike) or ', '.join(config_names())}")
    return Published(name, ModelConfig(**_CONFIGS[name]), _DIALECTS[name.partition("/")[0]], _SOURCES[name])


def named_config(name: str) -> tuple[ModelConfig, Dialect]:
    """Configuration and dialect of a published model; raises ConfigError for an unknown name."""
    found = published(name)
    return found.config, found.dialect
