"""Part by part: how far embedding, layers and head of one call are from the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from txl_export.layouts import StateSpec
from txl_export.verification.bisection.numbers import allowance, distance, is_float
from txl_export.verification.bisection.parts import output_of

if TYPE_CHECKING:
    from txl_export.verification.bisection.judge import Values


@dataclass(frozen=True)
class PartError:
    """One value at the end of a part.

    Attributes:
        part: such as "layers.1".
        value: its name in the graph.
        error: largest difference from the reference; None where the graph has no value of that name.
        allowed: what rounding explains.
        remembered: whether it is a part of the memory, which only the next call reads.
    """

    part: str
    value: str
    error: float | None
    allowed: float
    remembered: bool = False

    @property
    def lost(self) -> bool:
        """Whether the value is out of tolerance."""
        return self.error is not None and not self.error <= self.allowed


def compare(
    found: Mapping[str, np.ndarray],
    single: Values,
    double: Values,
    parts: Sequence[str],
    states: Sequence[StateSpec],
    tolerance: float | None,
) -> list[PartError]:
    """Every comparable value of a call, in the order in which the parts run.

    Args:
        found: the graph's values.
        single: the reference's in float32, or in the bundle's half precision.
        double: and in float64, from the same memory.
        parts: the graph's parts.
        states: the memory tensors.
        tolerance: what an answer may differ by whatever its rounding, nats; None for rounding only.
    """
    errors = []
    for part, name, expected, exact in _pairs(single, double, parts, states):
        judged = tolerance is not None and part.startswith("heads")
        # Both round, in different orders, and each in every layer before this one.
        allowed = float(tolerance or 0.0) if judged else allowance(exact, expected)
        error = distance(found[name], exact if _overflowed(expected, exact) else expected) if name in found else None
        errors.append(PartError(part, name, error, allowed, name in single.states))
    return errors


def _overflowed(expected: np.ndarray, exact: np.ndarray) -> bool:
    """Whether a half precision could not hold what should be there; then the same overflow is no agreement."""
    return bool((np.isfinite(exact) & ~np.isfinite(expected)).any())


def _pairs(
    single: Values, double: Values, parts: Sequence[str], states: Sequence[StateSpec]
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    for part, expected, exact in zip(parts, single.hidden, double.hidden, strict=False):
        for s in states:
            if part == f"layers.{s.layer}":
                yield part, s.output, single.states[s.output], double.states[s.output]
        yield part, output_of(part) or "", expected, exact
    for name, answer in single.answers.items():
        if is_float(answer):  # token ids may change places where probabilities tie
            yield parts[-1], name, answer, double.answers[name]
