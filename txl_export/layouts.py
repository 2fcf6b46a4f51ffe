"""Layouts: which memory tensors a graph takes and gives, as data that needs no torch.

The traced modules stand in `txl_export.graphs.layouts`, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from txl_export.config import ModelConfig
from txl_export.errors import ConfigError
from txl_export.number_types import itemsize


@dataclass(frozen=True)
class StateSpec:
    """One memory tensor of a graph.

    Attributes:
        input: name of the graph's input.
        layer: the layer it belongs to.
        shape: without the batch axis, which is axis 0.
        row_axis: axis of `shape` that counts tokens, oldest first.
        dtype: name of the element type; "bfloat16" is not numpy's own.
        aliased: whether the output is the input's own memory, written in place, where a backend can do that.
    """

    input: str
    layer: int
    shape: tuple[int, ...]
    row_axis: int
    dtype: str = "float32"
    aliased: bool = False

    @property
    def output(self) -> str:
        """Name of the graph's output that becomes this input at the next call."""
        return f"new_{self.input}"

    @property
    def nbytes(self) -> int:
        """Bytes per stream."""
        return math.prod(self.shape) * itemsize(self.dtype)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a single row, that axis kept with length 1."""
        return tuple(1 if axis == self.row_axis else n for axis, n in enumerate(self.shape))


def _hidden(config: ModelConfig, mem_len: int, dtype: str) -> list[StateSpec]:
    return [StateSpec(f"mem_{n:02d}", n, (mem_len, config.d_model), 0, dtype) for n in range(config.n_layer)]


def _kv(config: ModelConfig, mem_len: int, dtype: str) -> list[StateSpec]:
    shape = (config.n_head, mem_len, config.d_head)
    kinds = ("key", "value")
    return [StateSpec(f"{kind}_{n:02d}", n, shape, 1, dtype) for n in range(config.n_layer) for kind in kinds]


# One line per layout.
STATES: dict[str, Callable[[ModelConfig, int, str], list[StateSpec]]] = {"hidden": _hidden, "kv": _kv}


def state_specs(layout: str, config: ModelConfig, mem_len: int, dtype: str = "float32") -> list[StateSpec]:
    """The memory tensors of a layout, layer by layer; none when the memory has no rows.

    Raises:
        ConfigError: for an unknown layout.
    """
    if layout not in STATES:
        raise ConfigError(f"layout {layout!r} is unknown: use one of {', '.join(STATES)}")
    return STATES[layout](config, mem_len, dtype) if mem_len else []


def memory_bytes(layout: str, config: ModelConfig, mem_len: int, dtype: str = "float32") -> int:
    """Bytes of memory per stream."""
    return sum(s.nbytes for s in state_specs(layout, config, mem_len, dtype))
