"""Peer `huggingface`: `TransfoXLLMHeadModel` of transformers 4.35.2, eager, its `mems` fed back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.base import Start
from benchmarks.peers.memory import MadeMemory
from txl_export.checkpoints import Checkpoint, load_checkpoint
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what transformers takes from torch that torch has renamed since
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel
    from transformers.utils import logging

logging.set_verbosity_error()

_BASE = "transformer."


def build(checkpoint: Path, out: Path, mem_len: int, segment_lens: list[int]) -> None:
    """Save the checkpoint as a folder that `from_pretrained` takes."""
    del mem_len, segment_lens
    loaded = load_checkpoint(checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TransfoXLLMHeadModel(configuration(loaded.config, loaded.dialect)).eval()
        model.load_state_dict(_state_dict(loaded), strict=True)
        model.save_pretrained(out)


def configuration(c: ModelConfig, dialect: Dialect) -> Any:
    """Their configuration of the same model; raises ConfigError for a behaviour that theirs lacks."""
    if dialect.window_extra:
        raise ConfigError(f"window_extra is {dialect.window_extra}: Hugging Face's model knows only 0")
    same = (
        "vocab_size", "d_model", "d_embed", "n_head", "d_head", "d_inner", "div_val", "pre_lnorm", "n_layer",
        "mem_len", "clamp_len", "same_length", "untie_r",
    )  # fmt: skip
    config = TransfoXLConfig(
        **{name: getattr(c, name) for name in same},
        cutoffs=list(c.cutoffs),
        tie_word_embeddings=c.tie_weight,
        layer_norm_epsilon=dialect.layer_norm_eps,
    )
    config.tie_projs = list(c.tie_projs)
    return config


def _state_dict(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every tensor of the model, shared ones under each of their names."""
    c, w = checkpoint.config, {name: torch.from_numpy(a) for name, a in checkpoint.weights.items()}
    # Not trained, but kept among the tensors.
    inverse = 1 / 10000 ** (torch.arange(0.0, c.d_model, 2.0) / c.d_model)
    found = {_BASE + "pos_emb.inv_freq": inverse}
    if not c.untie_r:
        found |= {_BASE + "r_w_bias": w["u"], _BASE + "r_r_bias": w["v"]}
    for n in range(c.n_layer):
        found |= _layer(n, w, c.untie_r)
    tables = [name.rpartition(".")[2] for name in w if name.startswith("embedding.tables.")]
    for i in tables:
        table = w[f"embedding.tables.{i}"]
        found[f"{_BASE}word_emb.emb_layers.{i}.weight"] = table
        found[f"crit.out_layers.{i}.weight"] = table if c.tie_weight else w[f"softmax.weights.{i}"]
        found[f"crit.out_layers.{i}.bias"] = w[f"softmax.biases.{i}"]
    if c.n_tails:
        # Theirs has the row of tail i at i.
        order = [checkpoint.dialect.cluster_row(i, c.n_tails) for i in range(c.n_tails)]
        found["crit.cluster_weight"] = w["softmax.cluster_weight"][order]
        found["crit.cluster_bias"] = w["softmax.cluster_bias"][order]
    if c.has_projs:
        found |= {f"{_BASE}word_emb.emb_projs.{i}": w[f"embedding.projs.{i}"] for i in tables}
        for n, tied in enumerate(c.tie_projs):
            own = f"embedding.projs.{n if len(tables) > 1 else 0}" if tied else f"softmax.projs.{n}"
            found[f"crit.out_projs.{n}"] = w[own]
    return found


def _layer(n: int, w: Mapping[str, Tensor], own_biases: bool) -> dict[str, Tensor]:
    ours, theirs = f"layers.{n}.", f"{_BASE}layers.{n}."
    attention, ff = theirs + "dec_attn.", theirs + "pos_ff."
    u, v = (f"{ours}attention.u", f"{ours}attention.v") if own_biases else ("u", "v")
    return {
        attention + "r_w_bias": w[u],
        attention + "r_r_bias": w[v],
        attention + "qkv_net.weight": torch.cat([w[f"{ours}attention.{m}"] for m in ("W_q", "W_kE", "W_v")]),
        attention + "r_net.weight": w[ours + "attention.W_kR"],
        attention + "o_net.weight": w[ours + "attention.W_o"],
        attention + "layer_norm.weight": w[ours + "attention.norm.weight"],
        attention + "layer_norm.bias": w[ours + "attention.norm.bias"],
        ff + "CoreNet.0.weight": w[ours + "feed_forward.W_1"],
        ff + "CoreNet.0.bias": w[ours + "feed_forward.b_1"],
        ff + "CoreNet.3.weight": w[ours + "feed_forward.W_2"],
        ff + "CoreNet.3.bias": w[ours + "feed_forward.b_2"],
        ff + "layer_norm.weight": w[ours + "feed_forward.norm.weight"],
        ff + "layer_norm.bias": w[ours + "feed_forward.norm.bias"],
    }


class HuggingFace:
    """The model as its users load it, and its `mems`."""

    def __init__(self, start: Start) -> None:
        """Load the folder; without `mems` the model starts from M rows of zeros."""
        torch.set_num_threads(start.threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = TransfoXLLMHeadModel.from_pretrained(start.built, mem_len=start.mem_len).eval()
        n_layer, d_model = self.model.config.n_layer, self.model.config.d_model
        self.memory_bytes = 4 * n_layer * start.mem_len * d_model
        self._mems: list[Tensor] | None = None

    def call(self, ids: np.ndarray) -> Tensor:
        """See `Peer.call`."""
        with torch.inference_mode():
            output = self.model(torch.from_numpy(ids), mems=self._mems)
        self._mems = output.mems
        scores: Tensor = output.prediction_scores
        return scores

    def log_probs(self, answer: Tensor) -> np.ndarray:
        """See `Peer.log_probs`."""
        return answer.numpy()

    def remember(self, memory: MadeMemory) -> None:
        """See `Peer.remember`; theirs counts tokens first, [M, B, d_model]."""
        layers = range(memory.config.n_layer)
        made = [torch.from_numpy(memory.streams(memory.rows(n))) for n in layers]
        self._mems = [rows.transpose(0, 1).contiguous() for rows in made]


load = HuggingFace
