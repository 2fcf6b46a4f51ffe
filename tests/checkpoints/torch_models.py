"""Files as kimiyoung's and NVIDIA's code writes them: real `torch.save`, of classes under upstream's names."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import types
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.helpers import random_weights, tiny_config
from txl_export.config import Dialect, ModelConfig

MODULES = {
    "mem_transformer": [
        "MemTransformerLM", "AdaptiveEmbedding", "RelPartialLearnableDecoderLayer", "RelPartialLearnableMultiHeadAttn",
        "PositionwiseFF", "PositionalEmbedding",
    ],
    "proj_adaptive_softmax": ["ProjectedAdaptiveLogSoftmax"],
}  # fmt: skip
# Attributes that nn.Module has gained since 2019.
NEWER = (
    "_non_persistent_buffers_set", "_backward_pre_hooks", "_is_full_backward_hook", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_size",
)  # fmt: skip
KIMIYOUNG = Dialect(initial_memory="empty", window_extra=0, cluster_order="reversed")
NVIDIA = Dialect(initial_memory="empty", window_extra=1, cluster_order="reversed")
CONFIGS = {
    "plain": tiny_config(clamp_len=5, same_length=True, dropout=0.1),
    "div": tiny_config(cutoffs=(9, 17), div_val=2, tie_projs=(False, True, True), dropout=0.1),
    "untied": tiny_config(cutoffs=(9,), d_embed=10, tie_weight=False, pre_lnorm=True, dropatt=0.2),
    "one_proj": tiny_config(cutoffs=(9, 17), d_embed=10, tie_projs=(True, False, True)),
    "equal_projs": tiny_config(cutoffs=(9,), div_val=1),
}


def classes() -> dict[str, type[nn.Module]]:
    """Fresh classes of the authors' modules by name; they do nothing."""
    return {
        name: type(name, (nn.Module,), {"__module__": module}) for module, names in MODULES.items() for name in names
    }


@contextlib.contextmanager
def importable(found: dict[str, type]) -> Iterator[None]:
    """Within the block these classes are where their pickles will say, as pickling asks for; afterwards nowhere."""
    made = {}
    for name, cls in found.items():
        made.setdefault(cls.__module__, types.ModuleType(cls.__module__)).__dict__[name] = cls
    for module in list(made):
        for parent in module.split(".")[:-1]:
            made.setdefault(parent, types.ModuleType(parent))
    sys.modules.update(made)
    try:
        yield
    finally:
        for module in made:
            del sys.modules[module]


def parameter(w: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(w.copy()))


def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = parameter(weight)
    if bias is not None:
        made.bias = parameter(bias)
    return made


def norm(w: dict[str, np.ndarray], prefix: str, eps: float) -> nn.LayerNorm:
    made = nn.LayerNorm(len(w[prefix + "weight"]), eps=eps)
    made.weight, made.bias = parameter(w[prefix + "weight"]), parameter(w[prefix + "bias"])
    return made


def kimiyoung_model(config: ModelConfig, w: dict[str, np.ndarray], eps: float = 1e-5, **attributes: Any) -> nn.Module:
    """A module with the names, the sharing and the attributes of the authors' `MemTransformerLM`."""
    cls = classes()
    model = cls["MemTransformerLM"]()
    vars(model).update(
        n_token=config.vocab_size, n_layer=config.n_layer, n_head=config.n_head, d_model=config.d_model,
        d_head=config.d_head, d_embed=config.d_embed, mem_len=config.mem_len, tgt_len=4, ext_len=0, max_klen=10,
        attn_type=0, clamp_len=config.clamp_len, same_length=config.same_length, sample_softmax=-1,
    )  # fmt: skip
    vars(model).update(attributes)
    model.word_emb = embedding(cls["AdaptiveEmbedding"](), config, w)
    model.drop = nn.Dropout(config.dropout)
    model.r_w_bias, model.r_r_bias = parameter(w["u"]), parameter(w["v"])
    model.layers = nn.ModuleList(layer(cls, config, w, n, eps) for n in range(config.n_layer))
    model.crit = softmax(cls["ProjectedAdaptiveLogSoftmax"](), config, w, model.word_emb)
    model.pos_emb = cls["PositionalEmbedding"]()
    frequencies = 1 / (10000 ** (torch.arange(0.0, config.d_model, 2.0) / config.d_model))
    model.pos_emb.register_buffer("inv_freq", frequencies)
    return model


def embedding(made: nn.Module, config: ModelConfig, w: dict[str, np.ndarray]) -> nn.Module:
    tables = [w[n] for n in w if n.startswith("embedding.tables.")]
    made.emb_layers = nn.ModuleList(nn.Embedding(*t.shape, _weight=torch.from_numpy(t.copy())) for t in tables)
    made.emb_projs = nn.ParameterList(parameter(w[n]) for n in w if n.startswith("embedding.projs."))
    made.cutoffs, made.div_val = [*config.cutoffs, config.vocab_size], config.div_val
    return made


def layer(cls: dict[str, type], config: ModelConfig, w: dict[str, np.ndarray], n: int, eps: float) -> nn.Module:
    a, f = f"layers.{n}.attention.", f"layers.{n}.feed_forward."
    attention, feed_forward = cls["RelPartialLearnableMultiHeadAttn"](), cls["PositionwiseFF"]()
    attention.qkv_net = linear(np.concatenate([w[a + x] for x in ("W_q", "W_kE", "W_v")]))
    attention.drop, attention.dropatt = nn.Dropout(config.dropout), nn.Dropout(config.dropatt)
    attention.o_net, attention.r_net = linear(w[a + "W_o"]), linear(w[a + "W_kR"])
    attention.layer_norm = norm(w, a + "norm.", eps)
    attention.pre_lnorm = feed_forward.pre_lnorm = config.pre_lnorm
    feed_forward.d_inner = config.d_inner
    parts = linear(w[f + "W_1"], w[f + "b_1"]), linear(w[f + "W_2"], w[f + "b_2"])
    feed_forward.CoreNet = nn.Sequential(parts[0], nn.ReLU(inplace=True), nn.Dropout(0.1), parts[1], nn.Dropout(0.1))
    feed_forward.layer_norm = norm(w, f + "norm.", eps)
    made = cls["RelPartialLearnableDecoderLayer"]()
    made.dec_attn, made.pos_ff = attention, feed_forward
    return made


def softmax(made: nn.Module, config: ModelConfig, w: dict[str, np.ndarray], emb: nn.Module) -> nn.Module:
    if config.n_tails:
        made.cluster_weight = parameter(w["softmax.cluster_weight"])
        made.cluster_bias = parameter(w["softmax.cluster_bias"])
    made.out_layers, made.out_projs = nn.ModuleList(), nn.ParameterList()
    for i, table in enumerate(emb.emb_layers):
        out = linear(table.weight.detach().numpy(), w[f"softmax.biases.{i}"])
        out.weight = table.weight if config.tie_weight else parameter(w[f"softmax.weights.{i}"])
        made.out_layers.append(out)
    for i, tied in enumerate(config.tie_projs if config.has_projs else ()):
        owner = i if config.div_val > 1 else 0
        made.out_projs.append(emb.emb_projs[owner] if tied else parameter(w[f"softmax.projs.{i}"]))
    return made


def save_kimiyoung(path: Path, value: Any, zipped: bool = True) -> Path:
    """`torch.save` of a model or anything that holds one."""
    found = {type(m).__name__: type(m) for m in value.modules()} if isinstance(value, nn.Module) else {}
    ours = {n: c for n, c in found.items() if c.__module__ in MODULES}
    with importable(ours), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old container asks for the source of classes, and these have none
        torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


class Backend:
    """What stood in every module until torch 1.2; it was pickled as a call."""

    def __reduce__(self):
        from torch.nn.backends.thnn import _get_thnn_function_backend

        return _get_thnn_function_backend, ()


def as_of_2019(model: nn.Module) -> nn.Module:
    """The model without the attributes that later versions of torch write, with one that earlier ones wrote."""
    backend = Backend()
    for m in model.modules():
        for name in NEWER:
            vars(m).pop(name, None)
        vars(m)["_backend"] = backend
    return model


def nvidia_config(config: ModelConfig, **changes: Any) -> dict[str, Any]:
    names = ("n_layer", "n_head", "d_model", "d_head", "d_inner", "dropout", "dropatt", "tie_weight", "d_embed")
    value = {n: getattr(config, n) for n in (*names, "div_val", "pre_lnorm", "mem_len", "same_length", "clamp_len")}
    lists = {"cutoffs": list(config.cutoffs), "tie_projs": list(config.tie_projs)}
    value |= {"n_token": config.vocab_size, "attn_type": 0, "ext_len": 0, "tgt_len": 4, "sample_softmax": -1}
    return value | lists | {"dtype": None} | changes


def nvidia_state(config: ModelConfig, w: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """`model_state` as NVIDIA's module gives it: no tied weights, projections under a second name."""
    state = OrderedDict(kimiyoung_model(config, w).state_dict())
    for name in [n for n in state if n.startswith("crit.out_")]:
        _, kind, i, *part = name.split(".")
        tensor = state.pop(name)
        if kind == "out_layers" and (part == ["bias"] or not config.tie_weight):
            state[f"crit.out_layers_{'biases' if part == ['bias'] else 'weights'}.{i}"] = tensor
        if kind == "out_projs" and not config.tie_projs[int(i)]:
            state[name] = tensor
    for name in [n for n in state if n.startswith("word_emb.emb_projs.")]:
        state[f"crit.shared_out_projs.{name.rpartition('.')[2]}"] = state[name]
    return state


def vocab_object(words: list[str]) -> Any:
    """A `utils.vocabulary.Vocab`."""
    made = type("Vocab", (), {"__module__": "utils.vocabulary"})()
    counts = Counter({w: 1000 - i for i, w in enumerate(words[1:])})
    vars(made).update(counter=counts, special=["<eos>"], min_freq=0, max_size=None, lower_case=False, delimiter=None)
    vars(made).update(vocab_file=None, idx2sym=words, sym2idx=OrderedDict((w, i) for i, w in enumerate(words)))
    return made


def nvidia_checkpoint(config: ModelConfig, w: dict[str, np.ndarray], **changes: Any) -> dict[str, Any]:
    """What NVIDIA's `save_checkpoint` writes; `changes` replace entries."""
    state = nvidia_state(config, w)
    moments = {0: {"step": 7, "exp_avg": torch.zeros(3, 4), "exp_avg_sq": torch.zeros(3, 4).t()}}
    return {
        "args": argparse.Namespace(work_dir="LM-TFM", n_layer=config.n_layer, adaptive=True),
        "model_config": nvidia_config(config),
        "model_state": state,
        "optimizer_state": {"state": moments, "param_groups": [{"lr": 0.01, "betas": (0.9, 0.999), "params": [0]}]},
        "scheduler_state": {"T_max": 900, "last_epoch": np.int64(3)},
        "rng_states": [torch.zeros(16, dtype=torch.uint8)],
        "memory": [[torch.zeros(2, 6, 1, config.d_model)]],
        "vocab": vocab_object(["<eos>", *(f"tok{i}" for i in range(config.vocab_size - 1))]),
        "amp_state": None,
        "best_val_loss": np.float64(5.0),
    } | changes


def save_nvidia(path: Path, value: dict[str, Any], zipped: bool = True) -> Path:
    with importable({"Vocab": type(value["vocab"])} if value.get("vocab") else {}):
        torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def make(form: str, path: Path, config: ModelConfig = CONFIGS["div"]) -> tuple[Path, dict[str, np.ndarray]]:
    """A file of one of `FORMS`, and the weights in it."""
    w = random_weights(config)
    FORMS[form](path, config, w)
    return path, w


FORMS = {
    "module": lambda path, c, w: save_kimiyoung(path, kimiyoung_model(c, w)),
    "old module": lambda path, c, w: save_kimiyoung(path, as_of_2019(kimiyoung_model(c, w)), zipped=False),
    "state dict": lambda path, c, w: save_kimiyoung(path, kimiyoung_model(c, w).state_dict()),
    "old state dict": lambda path, c, w: save_kimiyoung(path, kimiyoung_model(c, w).state_dict(), zipped=False),
    "nvidia": lambda path, c, w: save_nvidia(path, nvidia_checkpoint(c, w)),
    "old nvidia": lambda path, c, w: save_nvidia(path, nvidia_checkpoint(c, w), zipped=False),
}


def zipped(pickle: bytes, storages: dict[str, bytes] | None = None, packed: int = zipfile.ZIP_STORED, **more: bytes):
    """The bytes of an archive as `torch.save` lays it out, of a pickle made by hand."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packed) as archive:
        archive.writestr("archive/data.pkl", pickle)
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in more.items():
            archive.writestr(f"archive/{name.replace('_pkl', '.pkl')}", data)
    return out.getvalue()


def unzipped(path: Path) -> dict[str, bytes]:
    """Entries of an archive of `torch.save` by name, without its folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
