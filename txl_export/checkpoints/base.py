"""What every origin's loader gives: a `Checkpoint`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.adapters import Adapter
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import ConfigError
from txl_export.vocabulary import Vocabulary
from txl_export.weights import check_weights


@contextlib.contextmanager
def values_of(source: Path | str, given: Iterable[str] = ()) -> Iterator[None]:
    """Within the block, a ConfigError is about values that were read from a file, and names it.

    Args:
        source: what to call the file.
        given: names of those values that are the caller's instead.
    """
    try:
        yield
    except ConfigError as e:
        is_given = any(str(e).startswith(f"{name} is ") for name in given)
        advice = "give another" if is_given else "the file is damaged, or its model of a kind that is not supported"
        raise ConfigError(f"{source}: {e}; {advice}") from None


@dataclass(frozen=True)
class Checkpoint:
    """A trained model, whatever it was stored as.

    Attributes:
        config: architecture and evaluation values.
        dialect: behaviours of its origin.
        weights: canonical names (`txl_export.weights`) to float32 arrays.
        origin: name of the implementation that it comes from.
        path: where it was loaded from; None for one made in memory.
        vocab: its vocabulary; None where the files hold none.
        overrides: evaluation values that replaced stored ones.
        notes: what a reader should know of how it was read, a line each.
        assumed: evaluation values that no file holds, as they were set.
        adapters: what was merged into the weights, in order.
    """

    config: ModelConfig
    dialect: Dialect
    weights: Mapping[str, np.ndarray]
    origin: str = "native"
    path: Path | None = None
    vocab: Vocabulary | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assumed: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        """Check the tensors against the config; raises CheckpointError."""
        check_weights(self.config, self.weights, str(self.path or "checkpoint"))
