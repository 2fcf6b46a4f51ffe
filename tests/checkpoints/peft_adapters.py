"""LoRA adapters as PEFT saves them, made by hand, and modules that run them beside the weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

from txl_export.config import ModelConfig

PREFIX = "base_model.model."
NETS = ("dec_attn.qkv_net", "dec_attn.r_net", "dec_attn.o_net", "pos_ff.CoreNet.0", "pos_ff.CoreNet.3")

# What PEFT writes besides what it was asked for.
USUAL: dict[str, Any] = {
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "/models/base", "bias": "none",
    "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 6, "lora_dropout": 0.1,
    "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "peft_type": "LORA",
    "qalora_group_size": 16, "r": 3, "rank_pattern": {}, "revision": None, "target_modules": None,
    "task_type": None, "use_dora": False, "use_rslora": False,
}  # fmt: skip
SCALE = 2.0  # lora_alpha / r


def module_names(config: ModelConfig, base: str = "") -> list[str]:
    return [f"{base}layers.{n}.{net}" for n in range(config.n_layer) for net in NETS]


def sizes(config: ModelConfig, module: str) -> tuple[int, int]:
    """(out, in) of a linear module, or (tokens, width) of an embedding's table."""
    heads, c = config.n_head * config.d_head, config
    by_end = {
        "qkv_net": (3 * heads, c.d_model), "r_net": (heads, c.d_model), "o_net": (c.d_model, heads),
        "CoreNet.0": (c.d_inner, c.d_model), "CoreNet.3": (c.d_model, c.d_inner),
    }  # fmt: skip
    linear = [size for end, size in by_end.items() if module.endswith(end)]
    if linear:
        return linear[0]
    i = int(module.rpartition(".")[2])
    ends = c.cluster_ends if c.div_val > 1 else (0, c.vocab_size)
    return ends[i + 1] - ends[i], c.cluster_width(i)


def is_embedding(module: str) -> bool:
    return "emb_layers" in module


def low_rank(
    config: ModelConfig, modules: Iterable[str], r: int = 3, seed: int = 0, std: float = 0.2, dora: bool = False
) -> dict[str, np.ndarray]:
    """Random matrices for these modules, under PEFT's names; magnitudes between 0.5 and 1.5 with DoRA."""
    rng, tensors = np.random.default_rng(seed), {}
    for module in modules:
        rows, columns = sizes(config, module)
        pairs = {"lora_A.weight": (r, columns), "lora_B.weight": (rows, r)}
        if is_embedding(module):
            pairs = {"lora_embedding_A": (r, rows), "lora_embedding_B": (columns, r)}
        for name, shape in pairs.items():
            tensors[f"{PREFIX}{module}.{name}"] = (rng.standard_normal(shape) * std).astype(np.float32)
        if dora:
            magnitude = rng.uniform(0.5, 1.5, columns if is_embedding(module) else rows)
            tensors[f"{PREFIX}{module}.lora_magnitude_vector"] = magnitude.astype(np.float32)
    return tensors


def save_adapter(folder: Path, tensors: Mapping[str, np.ndarray], **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(USUAL | settings))
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def delta(tensors: Mapping[str, np.ndarray], module: str, scale: float = SCALE) -> np.ndarray:
    """What an adapter adds to the matrix of a module, float64 [rows, columns]."""
    t = {n.removeprefix(f"{PREFIX}{module}."): w.astype(np.float64) for n, w in tensors.items()}
    if is_embedding(module):
        return scale * (t["lora_embedding_B"] @ t["lora_embedding_A"]).T
    return scale * t["lora_B.weight"] @ t["lora_A.weight"]


class Beside(nn.Module):
    """A linear module or an embedding with its adapter run beside it, as in training; its weights stay readable."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, np.ndarray], name: str, scale: float = SCALE) -> None:
        super().__init__()
        self.module, self.scale, self.embeds = module, scale, is_embedding(name)
        kinds = ("lora_embedding_A", "lora_embedding_B") if self.embeds else ("lora_A.weight", "lora_B.weight")
        self.A, self.B = (torch.from_numpy(tensors[f"{PREFIX}{name}.{kind}"]) for kind in kinds)

    @property
    def weight(self) -> torch.Tensor:
        return self.module.weight  # type: ignore[return-value]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.embedding(x, self.A.T) if self.embeds else F.linear(x, self.A)
        return self.module(x) + self.scale * F.linear(a, self.B)


def run_beside(model: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Put the adapter's matrices beside the modules of a model that it names."""
    ends = (".lora_A.weight", ".lora_embedding_A")
    names = [key.removeprefix(PREFIX) for key in tensors]
    for module in {n.removesuffix(end) for n in names for end in ends if n.endswith(end)}:
        parent, _, child = module.rpartition(".")
        owner = model.get_submodule(parent)
        owner.register_module(child, Beside(model.get_submodule(module), tensors, module))
