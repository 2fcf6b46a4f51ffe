"""Optimisation profiles: the shapes of all inputs, made from one batch and one segment, so that they agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txl_export.building.sizes import Sizes, fixed_sizes
from txl_export.bundle import GraphSpec, Manifest, TensorSpec
from txl_export.engines import InputProfile
from txl_export.errors import BuildError, InputError


@dataclass(frozen=True)
class BatchRange:
    """The batch sizes of an engine: the least, the one it is optimised for, the largest."""

    min: int
    opt: int
    max: int

    @classmethod
    def parse(cls, value: int | str) -> BatchRange:
        """Read 8, "8" or "1:1:8"; raises InputError for anything else."""
        parts = str(value).strip().split(":")
        if len(parts) not in (1, 3) or not all(p.strip().isdecimal() and len(p) < 10 for p in parts):
            raise InputError(f"batch {value!r} is not readable: write MIN:OPT:MAX such as 1:1:8, or one number")
        numbers = [int(p) for p in parts]
        return cls(*(numbers * 3 if len(numbers) == 1 else numbers))

    def check(self, most: int) -> None:
        """Raise InputError unless 1 <= MIN <= OPT <= MAX <= `most`."""
        if not 1 <= self.min <= self.opt <= self.max:
            raise InputError(f"batch {self} does not rise from 1 on: expected MIN <= OPT <= MAX, such as 1:1:8")
        if self.max > most:
            raise InputError(f"batch {self} is more than the graphs take: expected at most {most} streams")

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.min}:{self.opt}:{self.max}"


def make_profiles(manifest: Manifest, graph: GraphSpec, batch: BatchRange) -> tuple[InputProfile, ...]:
    """The profile of each input of a graph, in its order.

    A graph for a range of segment lengths is optimised for the length that feeds are cut into.
    """
    segment = graph.segment
    usual = min(max(manifest.segment_len, segment.lo), segment.hi)
    fixed = fixed_sizes(manifest)
    corners: tuple[Sizes, ...] = (
        {"batch": batch.min, "segment": segment.lo} | fixed,
        {"batch": batch.opt, "segment": usual} | fixed,
        {"batch": batch.max, "segment": segment.hi} | fixed,
    )
    return tuple(InputProfile(t.name, *(_shape(t, c) for c in corners)) for t in manifest.inputs(graph))


def _shape(tensor: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes[n] if isinstance(n, str) else n for n in tensor.shape)


def check_profiles(profiles: Iterable[InputProfile], inputs: Iterable[TensorSpec]) -> None:
    """What builders let pass: each named dimension is the same in all inputs, fixed ones are as they are.

    Raises:
        BuildError: profiles that disagree with each other or with an input, that miss one or fall.
    """
    given = {p.name: p for p in profiles}
    sizes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for tensor in inputs:
        if tensor.name not in given:
            raise BuildError(f"input {tensor.name} has no profile: give shapes for every input")
        _check_input(tensor, given[tensor.name], sizes)


def _check_input(tensor: TensorSpec, profile: InputProfile, sizes: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    if any(len(shape) != len(tensor.shape) for shape in profile.shapes):
        raise BuildError(f"the profile of {tensor.name} has another rank than its shape {list(tensor.shape)}")
    for axis, expected in enumerate(tensor.shape):
        found = tuple(shape[axis] for shape in profile.shapes)
        if not found[0] <= found[1] <= found[2]:
            raise BuildError(f"the profile of {tensor.name} falls on axis {axis}: {_told(found)}, expected a rise")
        if isinstance(expected, int) and set(found) != {expected}:
            raise BuildError(f"the profile of {tensor.name} has {_told(found)} on axis {axis}, the graph {expected}")
        if isinstance(expected, str):
            first, same = sizes.setdefault(expected, (tensor.name, found))
            if found != same:
                raise BuildError(
                    f"profiles disagree on {expected}: {first} has {_told(same)}, {tensor.name} {_told(found)}"
                )


def _told(sizes: tuple[int, ...]) -> str:
    return ":".join(map(str, sizes))
