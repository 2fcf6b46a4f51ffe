"""Origin `nvidia`: the checkpoints of DeepLearningExamples, a dict of options, configuration, tensors, vocabulary.

The `model_state` of one, saved alone, is read too: what only the configuration says must then be given.

Source of names and rules: NVIDIA/DeepLearningExamples, `PyTorch/LanguageModeling/Transformer-XL/pytorch`,
`mem_transformer.py`, `utils/proj_adaptive_softmax.py` and `utils/exp_utils.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.base import Checkpoint, values_of
from txl_export.checkpoints.pickles import Tensor, TorchFile
from txl_export.checkpoints.torch_files import (
    described,
    opened,
    plain_state,
    read_all,
    refuse_extras,
    require,
    sharing,
    training_values,
)
from txl_export.checkpoints.unstated import completed, fields_in
from txl_export.checkpoints.upstream import Naming, canonical_weights
from txl_export.checkpoints.vocabularies import find_pickled
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError

NAMING = Naming(
    out_weight="crit.out_layers_weights.{}",
    out_bias="crit.out_layers_biases.{}",
    # All of the embedding's projections, whether the softmax uses them or not.
    shared_proj="crit.shared_out_projs.{}",
    omits_tied=True,
)
# One of these names tells this origin's state dicts from others'.
_MARKER = NAMING.out_bias.format(0)
_CONFIG, _STATE = "model_config", "model_state"
# Names that `model_config` shares with `ModelConfig`.
_SAME = (
    "n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val", "cutoffs", "tie_weight", "tie_projs",
    "pre_lnorm", "mem_len", "clamp_len", "same_length", "dropout", "dropatt", "attn_type",
)  # fmt: skip
_DIALECT = Dialect(initial_memory="empty", window_extra=1, cluster_order="reversed")


def detect(path: Path) -> str | None:
    """Why `path` is of this origin, or None when it is not; raises CheckpointError for files that are refused."""
    file = opened(path)
    if file is None or not isinstance(file.root, dict):
        return None
    if _CONFIG in file.root and _STATE in file.root:
        return f"{file.path.name} is a dict with {_CONFIG} and {_STATE}"
    state = _bare_state(file)
    return f"{file.path.name} holds a state dict with {_MARKER}" if state and _MARKER in state else None


def load(path: Path, given: Mapping[str, Any] | None = None, with_vocab: bool = True) -> Checkpoint:
    """Read a checkpoint file, or the folder that holds it; raises CheckpointError or ConfigError.

    Args:
        path: the file, or its folder.
        given: the caller's overrides, and what a bare state dict does not say.
        with_vocab: whether its vocabulary is wanted.
    """
    file = require(path)
    bare = _bare_state(file)
    return _load_whole(file, given or {}, with_vocab) if bare is None else _load_bare(file, bare, given or {})


def _bare_state(file: TorchFile) -> dict[str, Tensor] | None:
    """The tensors of a file that says nothing of their configuration; None for other files."""
    root = file.root
    if not isinstance(root, dict) or _CONFIG in root:
        return None
    return plain_state(root.get(_STATE, root))


def _load_bare(file: TorchFile, state: Mapping[str, Tensor], given: Mapping[str, Any]) -> Checkpoint:
    found = fields_in({name: t.shape for name, t in state.items()}, NAMING, file.path)
    config, assumed = completed(found, given, file.path)
    tensors = read_all(file, state)
    config = dataclasses.replace(config, **sharing(tensors, NAMING, 1 + config.n_tails, config.div_val))
    return _checkpoint(file, tensors, config, assumed=assumed)


def _load_whole(file: TorchFile, given: Mapping[str, Any], with_vocab: bool) -> Checkpoint:
    root = file.root
    value = root.get(_CONFIG) if isinstance(root, dict) else None
    state = plain_state(root.get(_STATE)) if isinstance(root, dict) else None
    if not isinstance(value, dict) or state is None:
        raise CheckpointError(
            f"{file.path} holds {described(root)}, expected a dict with {_CONFIG} and {_STATE}, or a state dict: is it "
            "another origin's?"
        )
    with values_of(file.path):
        config = parse_config(value, file.path)
    vocab, notes = find_pickled(root.get("vocab"), config, file.path) if with_vocab else (None, ())
    notes += training_values(config, given)
    return _checkpoint(file, read_all(file, state), config, vocab=vocab, notes=notes)


def _checkpoint(file: TorchFile, tensors: Mapping[str, np.ndarray], config: ModelConfig, **said: Any) -> Checkpoint:
    weights = canonical_weights(config, tensors, file.path, NAMING)
    return Checkpoint(config, _DIALECT, weights, origin="nvidia", path=file.path, **said)


def parse_config(value: Mapping[str, Any], source: Path) -> ModelConfig:
    """The architecture that a `model_config` describes; raises CheckpointError or ConfigError."""
    refuse_extras(value)
    lacking = [name for name in (*_SAME, "n_token") if name not in value]
    if lacking:
        raise CheckpointError(f"{source}: {_CONFIG} lacks {', '.join(lacking)}: the file is incomplete")
    return ModelConfig(
        vocab_size=value["n_token"],
        **{name: value[name] for name in _SAME},
    )
