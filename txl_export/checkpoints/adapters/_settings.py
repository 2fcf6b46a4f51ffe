"""`adapter_config.json`: what of it changes numbers, and what cannot be merged into weights.

Source of names and rules: peft 0.11.1 to 0.21.2, `tuners/lora/config.py` and `tuners/lora/model.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl_export.checkpoints.adapters._patterns import fits, is_simple
from txl_export.checkpoints.adapters._record import CONFIG_FILE
from txl_export.checkpoints.pickles import shown
from txl_export.errors import CheckpointError
from txl_export.files import read_json

_MOST_BYTES = 4_000_000

# Fields that leave the merged numbers alone, or that are read below.
_KNOWN = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_alpha", "lora_bias", "lora_dropout", "lora_ga_config",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
    "revision", "runtime_config", "target_modules", "task_type", "use_dora", "use_rslora",
}  # fmt: skip
# These, when set, make something else than a matrix that is added once and for all.
_REFUSED = {
    "alora_invocation_tokens": "it adapts only what follows certain tokens",
    "arrow_config": "it chooses between adapters for every token",
    "kasa_config": "it also changes the weights that it is added to",
    "layer_replication": "it makes a model of other layers",
    "megatron_config": "its modules are split over devices",
    "target_parameters": "it adapts parameters, expected modules",
    "trainable_token_indices": "it trains single rows of tables",
    "use_bdlora": "its matrices are block-diagonal",
    "use_qalora": "it pools its inputs",
}
# What training starts from where the model's own weights stay as they are. Others (pissa, olora, corda, lora_ga,
# loftq) change them, so that the stored matrices belong to weights that the checkpoint does not have.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class Settings:
    """What an adapter's configuration says.

    Attributes:
        rank: of every module that `rank_pattern` does not name.
        alpha: likewise.
        rank_pattern: other ranks, by a module's name or the end of it, which may be an expression.
        alpha_pattern: other alphas.
        rslora: scale by alpha / sqrt(rank), not by alpha / rank.
        dora: rows are rescaled to trained lengths.
        lora_bias: biases are trained with the matrices.
        bias: "none", "all" or "lora_only": the model's biases that the file holds.
        modules_to_save: modules that the file holds whole.
        target_modules: ends of module names; None where an expression says them, or a pattern of layers.
        exclude_modules: likewise.
        layers: indices of the adapted layers; None for all.
    """

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rslora: bool
    dora: bool
    lora_bias: bool
    bias: str
    modules_to_save: tuple[str, ...]
    target_modules: tuple[str, ...] | None
    exclude_modules: tuple[str, ...] | None
    layers: tuple[int, ...] | None

    def rank_of(self, module: str) -> int:
        """The rank of a module, by the first pattern that fits."""
        return next((r for key, r in self.rank_pattern.items() if fits(key, module)), self.rank)

    def alpha_of(self, module: str) -> float:
        """Likewise its alpha."""
        return next((a for key, a in self.alpha_pattern.items() if fits(key, module)), self.alpha)

    def scale(self, module: str) -> float:
        """What the product of its matrices is multiplied by."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.rslora else rank)

    def expected(self, modules: Iterable[str]) -> list[str]:
        """Those modules that it says it adapts; none where it names them by an expression."""
        if self.target_modules is None or self.exclude_modules is None:
            return []
        left_out = (*self.exclude_modules, *self.modules_to_save)
        return [m for m in modules if _ends(m, self.target_modules) and not _ends(m, left_out) and self._in_layers(m)]

    def _in_layers(self, module: str) -> bool:
        if self.layers is None:
            return True
        found = re.search(r"\blayers\.(\d+)\.", module)
        return found is not None and int(found[1]) in self.layers


def read_settings(folder: Path, most_patterns: int) -> Settings:
    """Read an adapter's configuration.

    Args:
        folder: the adapter.
        most_patterns: more patterns than the model has modules are no adapter's.

    Raises:
        CheckpointError: no configuration of LoRA, or of a kind that weights cannot take in.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} is no adapter: it has no {CONFIG_FILE}; give the folder that PEFT saved")
    if path.stat().st_size > _MOST_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes, expected at most {_MOST_BYTES}: it is damaged")
    value = read_json(path, CheckpointError)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, expected an object")
    _refuse_kinds(value, path)
    return _settings(value, path, most_patterns)


def _refuse_kinds(value: Mapping[str, Any], path: Path) -> None:
    kind, start = value.get("peft_type"), value.get("init_lora_weights", True)
    if kind != "LORA":
        raise CheckpointError(f"{path} has peft_type {shown(str(kind))}, expected LORA: other adapters are not merged")
    for name, why in _REFUSED.items():
        if value.get(name):
            raise CheckpointError(f"{path} has {name}: {why}, which cannot be merged")
    if start not in _STARTS or (isinstance(start, float | int) and not isinstance(start, bool)):
        raise CheckpointError(
            f"{path} has init_lora_weights {shown(str(start))}, which also changes the model's weights: save the "
            "adapter as plain LoRA with save_pretrained's path_initial_model_for_weight_conversion"
        )
    unknown = sorted(name for name, v in value.items() if v and name not in _KNOWN and name not in _REFUSED)
    if unknown:
        raise CheckpointError(
            f"{path} has {shown(unknown[0])}, and it is not known here what that does: update txl-export"
        )


def _settings(value: Mapping[str, Any], path: Path, most_patterns: int) -> Settings:
    get = _Fields(value, path)
    layers = value.get("layers_to_transform")
    layers = [layers] if _is_int(layers) else layers
    some = layers is not None
    plain = not some or value.get("layers_pattern") in (None, "layers", ["layers"])
    return Settings(
        rank=get.one("r", _is_rank, "a whole number above 0"),
        alpha=get.one("lora_alpha", _is_number, "a number"),
        rank_pattern=get.patterns("rank_pattern", _is_rank, most_patterns),
        alpha_pattern=get.patterns("alpha_pattern", _is_number, most_patterns),
        **{
            name.removeprefix("use_"): get.one(name, _is_bool, "true or false", False)
            for name in ("use_rslora", "use_dora", "lora_bias")
        },
        bias=get.one("bias", lambda v: v in ("none", "all", "lora_only"), "none, all or lora_only", "none"),
        modules_to_save=get.names("modules_to_save") or (),
        target_modules=get.names("target_modules") if plain else None,
        exclude_modules=get.names("exclude_modules") if value.get("exclude_modules") else (),
        layers=get.whole(layers) if some else None,
    )


@dataclass(frozen=True)
class _Fields:
    """Fields of a configuration, each checked."""

    value: Mapping[str, Any]
    path: Path

    def one(self, name: str, holds: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        found = self.value.get(name)
        found = default if found is None else found
        if not holds(found):
            self._refuse(name, found, expected)
        return found

    def patterns(self, name: str, holds: Callable[[Any], bool], most: int) -> dict[str, Any]:
        found = self.value.get(name) or {}
        if not isinstance(found, dict) or len(found) > most or not all(map(holds, found.values())):
            self._refuse(name, found, f"up to {most} names of modules with numbers")
        for key in found:
            if not is_simple(key):
                self._refuse(name, key, "the name of a module or a simple expression")
        return dict(found)

    def names(self, name: str) -> tuple[str, ...] | None:
        """A list of names; None for a text, which is an expression or a word for many modules."""
        found = self.value.get(name)
        if found is None or isinstance(found, str):
            return None
        if not isinstance(found, list) or not all(isinstance(n, str) for n in found):
            self._refuse(name, found, "a list of names")
        return tuple(found)

    def whole(self, found: Any) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(map(_is_int, found)):
            self._refuse("layers_to_transform", found, "numbers of layers")
        return tuple(found)

    def _refuse(self, name: str, found: object, expected: str) -> None:
        raise CheckpointError(f"{self.path} has {name} {shown(str(found))}, expected {expected}")


def _ends(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.endswith("." + name) for name in names)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30  # NaN is not


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)
