"""What origins that are saved by `torch.save` share: which file to read, and what in it is a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.pickles import Plain, Tensor, TorchFile, is_torch_file, open_torch, shown
from txl_export.checkpoints.upstream import Naming, projection_owner
from txl_export.config import OVERRIDABLE_CONFIG, ModelConfig
from txl_export.errors import CheckpointError, ConfigError

# Names that upstream's training scripts give, the best first.
_USUAL = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
_MOST_MODULES = 100_000
# What wraps a model whole, with the name of the attribute it is under.
_WRAPPERS = {"DataParallel", "BalancedDataParallel", "DistributedDataParallel"}


def opened(path: Path) -> TorchFile | None:
    """The file, or the one in a folder that upstream's scripts would have written; None where there is none.

    Raises:
        CheckpointError: several files could be meant, or the file cannot be read.
    """
    file = _choose(path) if path.is_dir() else path
    return open_torch(file) if file is not None and is_torch_file(file) else None


def _choose(folder: Path) -> Path | None:
    for name in _USUAL:
        if is_torch_file(folder / name):
            return folder / name
    others = [p for p in sorted(folder.glob("*.pt")) if is_torch_file(p)]
    if len(others) > 1:
        raise CheckpointError(f"{folder} has {len(others)} .pt files, such as {others[0].name}: give the one to read")
    return others[0] if others else None


def require(path: Path) -> TorchFile:
    """The file; raises CheckpointError where there is none."""
    file = opened(path)
    if file is None:
        raise CheckpointError(f"{path} is no file of torch.save and holds none: give the .pt file itself")
    return file


def unwrapped(value: Any) -> Any:
    """A module without what training on several devices wrapped it in."""
    for _ in range(4):
        if not isinstance(value, Plain) or value.name.rpartition(".")[2] not in _WRAPPERS:
            break
        value = children(value).get("module")
    return value


def children(module: Plain) -> dict[str, Any]:
    """A module's modules by name."""
    found = module.get("_modules")
    return found if isinstance(found, dict) else {}


def modules_of(module: Plain, source: Path) -> Iterator[tuple[str, Plain]]:
    """A module and all below it, with their paths, each followed by a dot.

    Raises:
        CheckpointError: for more modules than any model has, which refer to each other.
    """
    todo, count = [("", module)], 0
    while todo:
        path, one = todo.pop()
        count += 1
        if count > _MOST_MODULES or len(path) > 1000:
            raise CheckpointError(f"{source} has modules within modules without end: it is damaged")
        yield path, one
        todo += [(f"{path}{k}.", child) for k, child in children(one).items() if isinstance(child, Plain)]


def module_state(module: Plain, source: Path) -> dict[str, Tensor]:
    """The tensors that `state_dict` of a module would hold; raises CheckpointError."""
    state = {}
    for path, one in modules_of(module, source):
        for kind in ("_parameters", "_buffers"):
            held = one.get(kind)
            for name, tensor in held.items() if isinstance(held, dict) else ():
                if isinstance(tensor, Tensor):
                    state[f"{path}{name}"] = tensor
    return state


def plain_state(value: Any) -> dict[str, Tensor] | None:
    """A state dict, names without the "module." of training on several devices; None for anything else."""
    if not isinstance(value, dict) or not value:
        return None
    if not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in value.items()):
        return None
    wrapped = all(k.startswith("module.") for k in value)
    return {k.removeprefix("module.") if wrapped else k: t for k, t in value.items()}


def read_all(file: TorchFile, state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The arrays of a state dict; raises CheckpointError."""
    return {name: file.read(tensor, name) for name, tensor in state.items()}


def sharing(tensors: Mapping[str, np.ndarray], naming: Naming, n_clusters: int, div_val: int) -> dict[str, Any]:
    """Whether the softmax's weights and projections are the embedding's: `tie_weight` and `tie_projs`.

    Files hold shared tensors under both names, or leave one out. Copies that are equal count as shared, which gives
    the same model.
    """
    tables, outs = f"{naming.base}word_emb.emb_layers.{{}}.weight", naming.out_weight
    n_tables = sum(tables.format(i) in tensors for i in range(n_clusters))
    owners = [naming.proj_names(projection_owner(div_val, i)) for i in range(n_clusters)]
    tie_projs = tuple(_shared(tensors, names, f"crit.out_projs.{i}", naming) for i, names in enumerate(owners))
    tie_weight = all(_shared(tensors, [tables.format(i)], outs.format(i), naming) for i in range(n_tables))
    return {"tie_weight": tie_weight, "tie_projs": tie_projs}


def _shared(tensors: Mapping[str, np.ndarray], names: Iterable[str], second: str, naming: Naming) -> bool:
    first = next((tensors[name] for name in names if name in tensors), None)
    if first is None or second not in tensors:
        return first is not None and naming.omits_tied
    return first is tensors[second] or np.array_equal(first, tensors[second])


def refuse_extras(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for what upstream's models may have beyond the paper's."""
    for name, why in (("ext_len", "an extended context"), ("sample_softmax", "a sampled softmax")):
        found = values.get(name)
        if isinstance(found, int) and found > 0:
            raise ConfigError(f"{name} is {found}, expected 0 ({why} is not supported)")


def training_values(config: ModelConfig, given: Mapping[str, Any]) -> tuple[str, ...]:
    """A note on the evaluation values that a file keeps of its training, as far as the caller gives no others."""
    kept = [f"{name} {getattr(config, name)}" for name in OVERRIDABLE_CONFIG if name not in given]
    note = f"{', '.join(kept)}: as it was trained, upstream's eval.py takes others from its options; override to match"
    return (note,) if kept else ()


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a state dict that `torch.save` wrote; raises CheckpointError."""
    file = open_torch(path)
    state = plain_state(file.root)
    if state is None:
        raise CheckpointError(f"{path} holds {described(file.root)}, expected a dict of names to tensors")
    return read_all(file, state)


def described(value: Any) -> str:
    """What a file holds, for messages."""
    if isinstance(value, Plain):
        return f"an object {shown(value.name)}"
    if isinstance(value, dict):
        names = ", ".join(shown(k) for k in list(value)[:4] if isinstance(k, str))
        return f"a dict of {names}" if names else "a dict"
    return f"a {type(value).__name__.lower()}"
