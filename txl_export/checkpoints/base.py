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
from txl_export.errors import ConfigError, InputError
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
class RandomWeights:
    """What random weights are drawn again from, number for number.

    Attributes:
        name: of the configuration.
        seed: 0 or more.
    """

    name: str
    seed: int

    def __post_init__(self) -> None:
        """Raise InputError for a seed that draws nothing."""
        if type(self.seed) is not int or self.seed < 0:
            raise InputError(f"seed of random weights is {self.seed!r}, expected a whole number of 0 or more")

    @property
    def note(self) -> str:
        """For readers of anything that such a model gives."""
        return f"the weights are random (seed {self.seed}), not trained: sizes and times mean something, answers don't"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"name": self.name, "seed": self.seed}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> RandomWeights:
        """Take back what `to_dict` gave; raises TypeError, ValueError or InputError for anything else."""
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or len(value) != 2:
            raise ValueError("random weights have no name and seed")
        return cls(**value)


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
        random: what its weights were drawn from, where they are not trained.
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
    random: RandomWeights | None = None

    def __post_init__(self) -> None:
        """Check the tensors against the config; raises CheckpointError."""
        check_weights(self.config, self.weights, str(self.path or "checkpoint"))
