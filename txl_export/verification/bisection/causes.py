"""Likely causes, from the evidence about a node. One entry each in `CAUSES`; the first that fits is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from txl_export.verification.bisection import changes
from txl_export.verification.bisection.culprit import Constant, Evidence
from txl_export.verification.bisection.graph_view import CASTS
from txl_export.verification.bisection.numbers import differences, is_float, largest
from txl_export.verification.bisection.sources import Source

Origin = Callable[[Constant, tuple[int, ...]], Source | None]
# The largest number that float16 holds.
HALF_MAX = 65504.0
# Operators that compute with weights or inputs of few bits.
QUANTISED = frozenset(
    {
        "MatMulInteger",
        "QLinearMatMul",
        "com.microsoft.MatMulNBits",
        "com.microsoft.DynamicQuantizeMatMul",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.GatherBlockQuantized",
    }
)


@dataclass(frozen=True)
class Cause:
    """Why a value is wrong.

    Attributes:
        name: such as "overflow".
        reason: what was seen, a sentence.
        advice: what to do, a sentence.
        constant: the constant that is not the judge's, where one is to blame.
        tensor: what it is called in the checkpoint, where known.
    """

    name: str
    reason: str
    advice: str
    constant: str | None = None
    tensor: str | None = None


def cause_of(evidence: Evidence, origin: Origin) -> Cause:
    """The first cause that the evidence fits.

    Args:
        evidence: about one node.
        origin: says which tensor a number of a constant comes from.
    """
    return next(c for test in CAUSES if (c := test(evidence, origin)) is not None)


def _overflow(e: Evidence, origin: Origin) -> Cause | None:
    del origin
    fine = np.isfinite(np.asarray(e.expected, np.float64))
    lost = ~np.isfinite(np.asarray(e.found, np.float64)) & fine
    half = e.found.dtype == np.float16 and np.abs(np.asarray(e.found, np.float64)) >= HALF_MAX
    saturated = half & (np.abs(e.expected) > HALF_MAX)
    count = int(np.count_nonzero(lost | saturated))
    if not count or _bad_constants(e):
        return None
    most = float(np.abs(np.asarray(e.expected, np.float64)[fine]).max(initial=0.0))
    if e.found.dtype == np.float32 and most <= HALF_MAX and not _computes(e):
        return None  # float32 holds such numbers, and the operator gives finite ones: no overflow
    limit = f", float16 ends at {HALF_MAX:g}" if most > HALF_MAX else ""
    return Cause(
        "overflow",
        f"{count} of {e.found.size} values are not finite or cut off where finite ones up to {most:.6g} "
        f"are expected{limit}",
        f"keep {e.node.name} in float32",
    )


def _bad_constants(e: Evidence) -> bool:
    return any(is_float(c.found) and not np.isfinite(np.asarray(c.found, np.float64)).all() for c in e.constants)


def _mask(e: Evidence, origin: Origin) -> Cause | None:
    del origin
    if e.mask is not None:
        seen, should = (np.isfinite(m) for m in e.mask)
    elif np.isneginf(e.expected).any() or np.isneginf(np.asarray(e.found, np.float64)).any():
        seen, should = np.isfinite(np.asarray(e.found, np.float64)), np.isfinite(e.expected)
    else:
        return None
    if seen.shape != should.shape or np.array_equal(seen, should):
        return None
    return Cause("mask", _pairs(seen, should), "restore the visibility rule of the graph: export again")


def _pairs(seen: np.ndarray, should: np.ndarray) -> str:
    """Which (query, key) pairs are wrong: the last two axes count queries and keys, memory first."""
    told = []
    for word, wrong in (("sees", seen & ~should), ("misses", should & ~seen)):
        count = int(np.count_nonzero(wrong))
        if count:
            query, key = (int(i) for i in np.argwhere(wrong)[0][-2:])
            own = wrong.shape[-1] - wrong.shape[-2] + query
            place = "its own token" if key == own else f"key {abs(own - key)} {'after' if key > own else 'before'} it"
            told.append(f"a query {word} a key that it must {'not ' * (word == 'sees')}see in {count} of {wrong.size} ")
            told[-1] += f"pairs, first query {query}, {place}"
    return "; ".join(told)


def _cast(e: Evidence, origin: Origin) -> Cause | None:
    for c in e.constants:
        told = changes.rounded_to(c.found, c.expected)
        if told or c.found.dtype != c.expected.dtype:
            told = told or str(c.found.dtype)
            tensor = _tensor(c, origin)
            return Cause("cast", f"{_called(c, tensor)} is rounded to {told}", "store it in float32", c.name, tensor)
    if e.node.op_type in QUANTISED - {e.judges.op_type}:
        return Cause("cast", f"{e.node.op_type} computes with few bits", f"keep {e.node.name} in float32")
    if e.constants and not e.extra:
        return None
    name = changes.low_precision(e.found, e.expected)
    if e.node.op_type in CASTS or (e.found.dtype not in (np.float32, np.float64) and is_float(e.found)):
        told = f"{e.node.op_type} rounds to {name or e.found.dtype} what the judge keeps in float32"
    elif name:
        told = f"the values are the expected ones rounded to {name}"
    else:
        return None
    return Cause("cast", told, f"keep {e.node.name} in float32")


def _constant(e: Evidence, origin: Origin) -> Cause | None:
    """A table or weight that is not the judge's."""
    few = e.judges.op_type in QUANTISED  # whose weights are whole numbers
    weights = [c for c in e.constants if (few or is_float(c.expected)) and c.expected.size]
    if not weights:
        return None
    c = weights[0]
    source = origin(c, _worst(c))
    tensor = source.name if source else None
    name = "wrong table" if source and source.is_table else "wrong weights"
    told = f"{_called(c, tensor)} {changes.describe(c.found, c.expected)}"
    return Cause(name, told, "export again from the judge's checkpoint, or give the checkpoint of this bundle",
                 c.name, tensor)  # fmt: skip


def _worst(c: Constant) -> tuple[int, ...]:
    return largest(differences(c.found, c.expected))[1] if c.found.shape == c.expected.shape else (0,) * c.expected.ndim


def _tensor(c: Constant, origin: Origin) -> str | None:
    source = origin(c, _worst(c))
    return source.name if source else None


def _called(c: Constant, tensor: str | None) -> str:
    return f"{tensor} (initializer {c.name})" if tensor else f"initializer {c.name}"


def _edited(e: Evidence, origin: Origin) -> Cause | None:
    """Another operator, attribute, whole number or wiring than the judge's graph has."""
    del origin
    advice = "undo what rewrote the graph, or export again"
    if e.extra:
        told = f"{e.node.op_type} {e.node.name} is not in the graph that the judge gives"
    elif e.node.op_type != e.judges.op_type:
        told = f"the operator is {e.node.op_type}, the judge's graph has {e.judges.op_type}"
    elif attributes := _attributes(e):
        told = f"of {e.node.op_type}, {attributes}"
    elif e.constants:
        c = e.constants[0]
        told = f"{_called(c, None)} {changes.describe(c.found, c.expected)}"
        return Cause("edited graph", told, advice, c.name)
    elif _computes(e):
        told = f"{e.node.op_type} gets other inputs than in the judge's graph: {', '.join(e.node.inputs)}"
    else:
        return None
    return Cause("edited graph", told, advice)


def _attributes(e: Evidence) -> str:
    from onnx import helper

    here, there = ({a.name: helper.get_attribute_value(a) for a in n.proto.attribute} for n in (e.node, e.judges))
    odd = [k for k in {**there, **here} if here.get(k) != there.get(k)]
    return ", ".join(f"{k} is {_short(here.get(k))}, expected {_short(there.get(k))}" for k in odd)


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _computes(e: Evidence) -> bool:
    """Whether the node's output is what its own operator makes of its own inputs."""
    return e.own_error is not None and e.own_error <= e.own_allowed


def _operator(e: Evidence, origin: Origin) -> Cause | None:
    del origin
    if e.own_error is None or _computes(e):
        return None
    return Cause(
        "operator",
        f"the backend's {e.node.op_type} is off by {e.own_error:.3g} where rounding explains {e.own_allowed:.1e}, with "
        "the judge's inputs, weights and attributes",
        "try another version of the backend, or report it to its makers with this node",
    )


def _unknown(e: Evidence, origin: Origin) -> Cause | None:
    del e, origin
    return Cause("unknown", "no known pattern fits the numbers", "compare the two ranges and the graph by hand")


# In the order in which they are tried.
CAUSES: list[Callable[[Evidence, Origin], Cause | None]] = [
    _overflow, _mask, _cast, _constant, _edited, _operator, _unknown,
]  # fmt: skip
