"""Segment lengths of graphs: a number (specialised) or a range (one graph for all lengths in it)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txl_export.errors import InputError


@dataclass(frozen=True, order=True)
class SegmentRange:
    """The call lengths that one graph takes: `lo` to `hi` tokens, both included."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        """Check the bounds; raises InputError."""
        if not 1 <= self.lo <= self.hi:
            raise InputError(f"segment length {self} is not a positive number or a rising range such as 1-64")

    def __contains__(self, n: int) -> bool:
        """Whether a call of n tokens fits."""
        return self.lo <= n <= self.hi

    def __str__(self) -> str:
        """As in a manifest and on the command line: "64" or "1-64"."""
        return str(self.lo) if self.fixed else f"{self.lo}-{self.hi}"

    @property
    def fixed(self) -> bool:
        """Whether the graph takes one length only."""
        return self.lo == self.hi

    @classmethod
    def parse(cls, value: int | str) -> SegmentRange:
        """Read 64, "64" or "1-64"; raises InputError."""
        parts = str(value).strip().split("-")
        if not 1 <= len(parts) <= 2 or not all(p.strip().isdecimal() for p in parts):
            raise InputError(f"segment length {value!r} is neither a number nor a range: write 64 or 1-64")
        numbers = [int(p) for p in parts]
        return cls(numbers[0], numbers[-1])


def parse_segments(values: Iterable[int | str]) -> tuple[SegmentRange, ...]:
    """Read several lengths, dropping repeats and keeping the order; raises InputError when there are none."""
    found = tuple(dict.fromkeys(SegmentRange.parse(v) for v in values))
    if not found:
        raise InputError("no segment length given: write at least one, such as 64")
    return found


def covering(segments: tuple[SegmentRange, ...], cut_is_free: bool) -> tuple[SegmentRange, ...]:
    """The given lengths, with a range added where some segment of 1 to the longest could not be run.

    Args:
        segments: the lengths asked for.
        cut_is_free: whether cutting a segment leaves its numbers unchanged, as under `same_length`.
    """
    longest = max(s.hi for s in segments)
    if cut_is_free and any(1 in s for s in segments):
        return segments
    if all(any(n in s for s in segments) for n in range(1, longest + 1)):
        return segments
    return (*segments, SegmentRange(1, longest))
