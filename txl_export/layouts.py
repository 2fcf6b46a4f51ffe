"""Layouts: which memory tensors a graph takes and gives, as data that needs no torch.

The traced modules stand in `txl_export.graphs.layouts`, under the same names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from txl_export.config import ModelConfig
from txl_export.errors import ConfigError, InputError
from txl_export.number_types import itemsize
from txl_export.segments import SegmentRange, covering, parse_segments


@dataclass(frozen=True)
class StateSpec:
    """One memory tensor of a graph.

    Attributes:
        input: name of the graph's input.
        layer: the layer it belongs to.
        shape: without the batch axis, which is axis 0.
        row_axis: axis of `shape` that counts tokens, oldest first.
        dtype: name of the element type; "bfloat16" is not numpy's own.
        aliased: whether the output is the input's own memory, written in place; how many rows there are is then
            the session's choice, up to those of `shape`.
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
    def dims(self) -> tuple[int | str, ...]:
        """The shape as a graph has it: rows that are written in place are as many as the session takes."""
        return tuple("rows" if self.aliased and axis == self.row_axis else n for axis, n in enumerate(self.shape))

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


def _ring(config: ModelConfig, rows: int, dtype: str) -> list[StateSpec]:
    return [dataclasses.replace(s, aliased=True) for s in _kv(config, rows, dtype)]


def ring_rows(mem_len: int, reach: int, rewind: int = 0) -> int:
    """S: rows that a memory written in place goes round in; see `txl_export.ring`.

    Args:
        mem_len: M.
        reach: tokens from the start of a segment to the end of a call in it, at most.
        rewind: tokens that can be taken back at any time.
    """
    return max(4, mem_len + reach + rewind)  # the tracer takes sizes of 0 and 1 for constants


@dataclass(frozen=True)
class Layout:
    """What a layout's graphs take and give.

    Attributes:
        memory: what the memory tensors hold, in words.
        states: memory tensors, of (architecture, rows, dtype).
        in_place: rows are written in place, so that a segment may be run in any calls: the session keeps positions
            and says which rows count.
        opset: the version of ONNX operators that its graphs need.
        inputs: int64 [batch] that say which rows count, where positions and M do not.
        ordered: the layout that keeps the same tensors with M rows by age, where this one does not.
        segment_lens: what is exported by default.
        projects_again: whether every call projects all remembered rows to keys and values once more.
    """

    memory: str
    states: Callable[[ModelConfig, int, str], list[StateSpec]]
    in_place: bool = False
    opset: int = 20
    inputs: tuple[str, ...] = ()
    ordered: str | None = None
    segment_lens: tuple[int, ...] = (1, 64)
    projects_again: bool = False

    def rows(self, mem_len: int, reach: int, longest: int, rewind: int = 0) -> int:
        """Rows of the memory tensors at M: M, or S + G where they are written in place.

        Args:
            mem_len: M.
            reach: tokens from the start of a segment to the end of a call in it, at most.
            longest: tokens of the longest call.
            rewind: tokens that can be taken back at any time.
        """
        return ring_rows(mem_len, reach, rewind) + longest - 1 if self.in_place else mem_len

    def usual_rows(self, mem_len: int) -> int:
        """Rows of the memory tensors of an export that is told nothing but M."""
        longest = max(self.segment_lens)
        return self.rows(mem_len, longest, longest)

    def graphs(
        self, asked: Iterable[int | str] | None, cut_is_free: bool, cover: bool = True
    ) -> tuple[SegmentRange, ...]:
        """The lengths that an export makes graphs for.

        Args:
            asked: numbers of tokens and ranges; None for `segment_lens`.
            cut_is_free: whether cutting a segment leaves its numbers unchanged, as under `same_length`.
            cover: add what it takes to run every length up to the longest.

        Raises:
            InputError: a length that is none, or a range where a layout has calls of fixed lengths only.
        """
        segments = parse_segments(self.segment_lens if asked is None else asked)
        if self.in_place and not all(s.fixed for s in segments):
            odd = next(s for s in segments if not s.fixed)
            raise InputError(
                f"calls in place have fixed lengths, which run segments of any: give numbers, not {odd}, or --layout kv"
            )
        if not cover:
            return segments
        if self.in_place:  # a segment may be run in any calls: with those of one token, all lengths can be
            return segments if any(1 in s for s in segments) else (SegmentRange(1, 1), *segments)
        return covering(segments, cut_is_free)


# One line per layout; the first is the default.
LAYOUTS: dict[str, Layout] = {
    "ring": Layout(
        "keys and values, projected once and written in place",
        _ring,
        in_place=True,
        opset=24,
        inputs=("visible_from", "window"),
        ordered="kv",
        segment_lens=(1, 8, 64),
    ),
    "kv": Layout("keys and values, projected once", _kv),
    "hidden": Layout("hidden states, as in the paper", _hidden, projects_again=True),
}
DEFAULT_LAYOUT = next(iter(LAYOUTS))


def layout_of(name: str) -> Layout:
    """The layout of a name; raises ConfigError for an unknown one."""
    if name not in LAYOUTS:
        raise ConfigError(f"layout {name!r} is unknown: use one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def state_specs(layout: str, config: ModelConfig, rows: int, dtype: str = "float32") -> list[StateSpec]:
    """The memory tensors of a layout, layer by layer; none when the memory has no rows.

    Args:
        layout: its name.
        config: the architecture.
        rows: M; in a layout that is written in place the rows of the ring and behind it.
        dtype: of the memory.

    Raises:
        ConfigError: for an unknown layout.
    """
    found = layout_of(layout)
    return found.states(config, rows, dtype) if rows else []


def memory_bytes(layout: str, config: ModelConfig, mem_len: int, dtype: str = "float32") -> int:
    """Bytes of memory per stream."""
    return sum(s.nbytes for s in state_specs(layout, config, mem_len, dtype))
