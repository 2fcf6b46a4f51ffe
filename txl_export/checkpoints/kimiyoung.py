"""Origin `kimiyoung`: what the authors' PyTorch code saves, a whole module or its state dict.

Source of names and rules: kimiyoung/transformer-xl, `pytorch/mem_transformer.py`,
`pytorch/utils/proj_adaptive_softmax.py` and `pytorch/train.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_export.checkpoints.base import Checkpoint, values_of
from txl_export.checkpoints.pickles import Plain, Tensor, TorchFile, shown
from txl_export.checkpoints.torch_files import (
    children,
    described,
    module_state,
    modules_of,
    opened,
    plain_state,
    read_all,
    refuse_extras,
    require,
    sharing,
    training_values,
    unwrapped,
)
from txl_export.checkpoints.unstated import completed, fields_in
from txl_export.checkpoints.upstream import Naming, canonical_weights
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError

NAMING = Naming()
MODEL = "mem_transformer.MemTransformerLM"
# One of these names tells this origin's state dicts from others'.
_MARKER = "crit.out_layers.0.bias"

_DIALECT: dict[str, Any] = {"initial_memory": "empty", "window_extra": 0, "cluster_order": "reversed"}
# Attributes of the module that are fields of `ModelConfig` as they are.
_SAME = ("n_layer", "n_head", "d_model", "d_head", "d_embed", "mem_len", "clamp_len", "same_length", "attn_type")


def detect(path: Path) -> str | None:
    """Why `path` is of this origin, or None when it is not; raises CheckpointError for files that are refused."""
    file = opened(path)
    if file is None:
        return None
    root = unwrapped(file.root)
    if isinstance(root, Plain):
        return f"{file.path.name} holds the module {MODEL}" if root.name == MODEL else None
    state = plain_state(root)
    return f"{file.path.name} is a state dict that holds {_MARKER}" if state and _MARKER in state else None


def load(path: Path, given: Mapping[str, Any] | None = None, _with_vocab: bool = True) -> Checkpoint:
    """Read a module or a state dict.

    Args:
        path: the file, or the folder that it is in.
        given: overrides, for what a state dict does not say.

    Raises:
        CheckpointError: it is damaged, names code, or holds something else.
        ConfigError: a configuration that is not supported, or is not given.
    """
    file = require(path)
    root = unwrapped(file.root)
    if isinstance(root, Plain) and root.name == MODEL:
        return _load_module(file, root, given or {})
    state = plain_state(root)
    if state is None:
        raise CheckpointError(
            f"{file.path} holds {described(root)}, expected a module {MODEL} or its state dict: is it another origin's?"
        )
    found = fields_in({name: t.shape for name, t in state.items()}, NAMING, file.path)
    config, assumed = completed(found, given or {}, file.path)
    return _checkpoint(file, state, config, Dialect(**_DIALECT), assumed=assumed)


def _load_module(file: TorchFile, module: Plain, given: Mapping[str, Any]) -> Checkpoint:
    with values_of(file.path):
        refuse_extras(module.state or {})
        config = _module_config(module, file.path)
        dialect = Dialect(**_DIALECT, layer_norm_eps=_layer_norm_eps(module, file.path))
    state = module_state(module, file.path)
    return _checkpoint(file, state, config, dialect, notes=training_values(config, given))


def _checkpoint(
    file: TorchFile, state: Mapping[str, Tensor], config: ModelConfig, dialect: Dialect, **said: Any
) -> Checkpoint:
    """The checkpoint of a state dict, whose tensors tell what the softmax shares with the embedding."""
    tensors = read_all(file, state)
    config = dataclasses.replace(config, **sharing(tensors, NAMING, 1 + config.n_tails, config.div_val))
    weights = canonical_weights(config, tensors, file.path, NAMING)
    return Checkpoint(config, dialect, weights, origin="kimiyoung", path=file.path, **said)


def _module_config(module: Plain, source: Path) -> ModelConfig:
    """The configuration that a module's attributes hold, but for what it shares."""
    embedding = _child(module, "word_emb", source)
    first = _child(_child(module, "layers", source), "0", source)
    attention, feed_forward = _child(first, "dec_attn", source), _child(first, "pos_ff", source)
    cutoffs = embedding.get("cutoffs")
    return ModelConfig(
        vocab_size=module.get("n_token"),
        # The module ends its list of cutoffs with the vocabulary's size.
        cutoffs=cutoffs[:-1] if isinstance(cutoffs, list | tuple) else cutoffs,  # type: ignore[arg-type]
        div_val=embedding.get("div_val"),
        d_inner=feed_forward.get("d_inner"),
        pre_lnorm=attention.get("pre_lnorm", False),
        dropout=_child(attention, "drop", source).get("p"),
        dropatt=_child(attention, "dropatt", source).get("p"),
        **{name: module.get(name) for name in _SAME},
    )


def _child(module: Plain, name: str, source: Path) -> Plain:
    found = children(module).get(name)
    if not isinstance(found, Plain):
        raise CheckpointError(f"{source}: {shown(module.name)} lacks the module {name}: the file is incomplete")
    return found


def _layer_norm_eps(module: Plain, source: Path) -> float:
    """The epsilon of all LayerNorms; raises CheckpointError where they differ."""
    found = [m.get("eps") for path, m in modules_of(module, source) if path.endswith("layer_norm.")]
    if not all(isinstance(eps, float) for eps in found) or len(set(found)) != 1:
        raise CheckpointError(f"{source} has LayerNorms without an epsilon, or of different epsilons, expected one")
    return found[0]
