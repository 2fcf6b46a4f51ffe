"""`adapter_model.safetensors`: its tensors by module, under the names of the model that the adapter was trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from txl_export.checkpoints.adapters._record import WEIGHTS_FILE
from txl_export.checkpoints.pickles import shown
from txl_export.checkpoints.tensors import read_safetensors
from txl_export.errors import CheckpointError

_PREFIX = "base_model.model."  # PEFT's two wrappers around the model
_PICKLED = "adapter_model.bin"
_SLACK = 1 << 26

# Ends of names, and what the tensor is of its module. Embeddings store parameters, linear modules have modules.
_ROLES = {
    ".lora_A.weight": "lora_A",
    ".lora_B.weight": "lora_B",
    ".lora_B.bias": "lora_B.bias",
    ".lora_embedding_A": "lora_embedding_A",
    ".lora_embedding_B": "lora_embedding_B",
    ".lora_magnitude_vector": "lora_magnitude_vector",
    ".lora_magnitude_vector.weight": "lora_magnitude_vector",
}


@dataclass
class Contents:
    """The tensors of an adapter.

    Attributes:
        modules: the adapter's own, by module and role.
        whole: tensors of the model itself, trained or kept whole.
    """

    modules: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    whole: dict[str, np.ndarray] = field(default_factory=dict)


def weights_path(folder: Path) -> Path:
    """Where the tensors are; raises CheckpointError for a folder without them, or with pickled ones only."""
    path = folder / WEIGHTS_FILE
    if path.is_file():
        return path
    if (folder / _PICKLED).is_file():
        raise CheckpointError(
            f"{folder} has {_PICKLED} but no {WEIGHTS_FILE}: only safetensors are read; load it with PEFT and save it "
            "again with save_pretrained(..., safe_serialization=True)"
        )
    raise CheckpointError(f"{folder} has no {WEIGHTS_FILE}: the adapter is incomplete")


def read_contents(path: Path, model_bytes: int) -> Contents:
    """Read and sort the tensors.

    Args:
        path: the safetensors file.
        model_bytes: of the model; what is much larger is no adapter of it and is not read.

    Raises:
        CheckpointError: it is damaged, too large, or holds names or numbers that no adapter has.
    """
    size = path.stat().st_size
    if size > 2 * model_bytes + _SLACK:
        raise CheckpointError(f"{path} has {size} bytes, the whole model {model_bytes}: it is another model's adapter")
    contents = Contents()
    for key, tensor in read_safetensors(path).items():
        _check_numbers(key, tensor, path)
        module, role = _split(key.removeprefix(_PREFIX))
        if role:
            found = contents.modules.setdefault(module, {})
        else:  # a module that LoRA wraps has its own tensors one level below
            found, role = contents.whole, module.replace(".base_layer.", ".")
        if role in found:
            raise CheckpointError(f"{path} holds {shown(key)} twice, under two names: give one")
        found[role] = tensor
    if not contents.modules and not contents.whole:
        raise CheckpointError(f"{path} holds no tensors: the adapter is empty")
    return contents


def _split(name: str) -> tuple[str, str]:
    """Module and role of an adapter's tensor; the whole name and "" for one of the model's."""
    for end, role in _ROLES.items():
        if name.endswith(end):
            return name.removesuffix(end), role
    return name, ""


def _check_numbers(key: str, tensor: np.ndarray, path: Path) -> None:
    if tensor.dtype.kind != "f":
        raise CheckpointError(f"{path}: {shown(key)} has dtype {tensor.dtype}, expected floating point")
    if not np.isfinite(tensor).all():
        raise CheckpointError(
            f"{path}: {shown(key)} holds NaN or Inf: the training run diverged or the file is damaged"
        )
