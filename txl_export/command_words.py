"""How values of the API are said on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

# Those with an option of their own.
_OPTIONS: dict[str, Callable[[Any], list[object]]] = {
    "mem_len": lambda value: ["--mem-len", value],
    "same_length": lambda value: ["--same-length" if value else "--no-same-length"],
    "clamp_len": lambda value: ["--clamp-len", value],
    "initial_memory": lambda value: ["--initial-memory", value],
}


def override_words(overrides: Mapping[str, Any]) -> list[object]:
    """The options that give a checkpoint these overrides."""
    words: list[object] = []
    for name, value in overrides.items():
        words += _OPTIONS[name](value) if name in _OPTIONS else ["--set", f"{name}={json.dumps(value)}"]
    return words
