"""Random models of Hugging Face's own implementation: transformers 4.35.2, the last release in which it works."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.helpers import import_or_skip

transformers = import_or_skip("transformers", "Hugging Face's own model: pip install 'txl-export[parity]'")
transformers.logging.set_verbosity_error()

USUAL: dict[str, Any] = {
    "vocab_size": 60, "cutoffs": [], "div_val": 1, "n_layer": 2, "n_head": 4, "d_model": 64, "d_head": 12,
    "d_embed": 64, "d_inner": 96, "mem_len": 12, "clamp_len": -1, "same_length": False, "untie_r": False,
}  # fmt: skip


def huggingface_model(seed: int = 0, std: float = 0.1, **changes: Any) -> Any:
    """A model in evaluation mode whose tensors are all random; `tie_projs` may be set to any pattern."""
    values = USUAL | changes
    tie_projs = values.pop("tie_projs", None)
    config = transformers.TransfoXLConfig(**values)
    if tie_projs is not None:
        config.tie_projs = tie_projs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.TransfoXLLMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(float(name.endswith("layer_norm.weight")), std, generator=generator)
    return model.requires_grad_(False)


def save_model(model: Any, folder: Path, safetensors: bool) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, safe_serialization=safetensors)
    return folder


def pairwise(options: dict[str, list[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """A small set of combinations in which every pair of values of two options occurs."""
    rng, names = random.Random(seed), list(options)
    wanted = all_pairs(options)
    rows = []
    while wanted:
        candidates = [{n: rng.choice(options[n]) for n in names} for _ in range(200)]
        best = max(candidates, key=lambda row: len(wanted & pairs_of(row)))
        wanted -= pairs_of(best)
        rows.append(best)
    return rows


def all_pairs(options: dict[str, list[Any]]) -> set[Any]:
    names = list(options)
    return {
        ((a, x), (b, y)) for i, a in enumerate(names) for b in names[i + 1 :] for x in options[a] for y in options[b]
    }


def pairs_of(row: dict[str, Any]) -> set[Any]:
    items = list(row.items())
    return {(a, b) for i, a in enumerate(items) for b in items[i + 1 :]}
