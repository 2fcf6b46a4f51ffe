"""What is remembered of an adapter that was merged into a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")


@dataclass(frozen=True)
class Adapter:
    """An adapter that was merged.

    Attributes:
        path: its folder.
        kind: "LoRA" or "DoRA".
        ranks: of its modules, each once, ascending.
        alphas: likewise.
        modules: that it adapts, under the names of the model it was trained on.
        replaced: tensors that it holds whole and that took the place of the model's.
        sha256: of its weights.
        config_sha256: of its `adapter_config.json`.
    """

    path: Path
    kind: str
    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    modules: tuple[str, ...]
    replaced: tuple[str, ...]
    sha256: str
    config_sha256: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict, which `described` takes."""
        lists = {name: list(getattr(self, name)) for name in ("ranks", "alphas", "modules", "replaced")}
        hashes = {"sha256": self.sha256, "config_sha256": self.config_sha256}
        return {"path": str(self.path), "kind": self.kind, **lists, **hashes}


def check_recorded(value: Any) -> None:
    """Raise ValueError, TypeError or KeyError for what is no list of adapters as `Adapter.to_dict` gives them."""
    lists: dict[str, Any] = {"ranks": int, "alphas": int | float, "modules": str, "replaced": str}
    for adapter in value:
        texts = [adapter[name] for name in ("path", "kind", "sha256", "config_sha256")]
        if not all(isinstance(text, str) for text in texts) or "\0" in adapter["path"]:
            raise ValueError("adapters hold one without path and hashes")
        for name, kind in lists.items():
            if not isinstance(adapter[name], list) or not all(isinstance(v, kind) for v in adapter[name]):
                raise ValueError(f"adapters hold one with other {name}")


def described(adapter: Mapping[str, Any]) -> str:
    """An adapter in words: kind, rank, alpha, which modules; of `Adapter.to_dict`."""
    said = []
    if adapter["modules"]:
        count = len(adapter["modules"])
        numbers = f"rank {_numbers(adapter['ranks'])}, alpha {_numbers(adapter['alphas'])}"
        modules = f"{count} module{'s' * (count != 1)}: {', '.join(grouped(adapter['modules']))}"
        said.append(f"{adapter['kind']} of {numbers} on {modules}")
    if adapter["replaced"]:
        said.append(f"in place of the model's: {', '.join(grouped(adapter['replaced']))}")
    return "; ".join(said)


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def grouped(names: Iterable[str]) -> list[str]:
    """Names that differ in their layer only as one: "layers.0-3.dec_attn.qkv_net"."""
    groups: dict[str, list[int]] = {}
    for name in names:
        found = _LAYER.search(name)
        groups.setdefault(_LAYER.sub("*", name, count=1), []).extend([int(found[0])] if found else [])
    return [pattern.replace("*", _ranges(sorted(layers)), 1) for pattern, layers in groups.items()]


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    ends: list[list[int]] = []
    for n in numbers:
        if ends and n == ends[-1][1] + 1:
            ends[-1][1] = n
        else:
            ends.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ends)
