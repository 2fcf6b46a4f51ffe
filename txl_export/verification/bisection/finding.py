"""What a search found, for people and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txl_export.verification.bisection.causes import Cause
from txl_export.verification.bisection.layers import PartError
from txl_export.verification.bisection.naming import VISIBLE
from txl_export.verification.bisection.numbers import Range


@dataclass(frozen=True)
class Place:
    """A node whose output is wrong.

    Attributes:
        node: its name in the bundle's graph.
        op_type: its operator.
        value: name of the output.
        module: the PyTorch module that it was traced from, by its name in the reference model.
        source: file, line and code of that module's equation; None where the tracer did not say.
        found: range of what the bundle's graph has.
        expected: range of what it should have.
        difference: the largest.
        index: where that is.
        at: the two values there, found and expected.
        allowed: what rounding explains.
        share: of the error at the end of the part, how much this node causes alone, about 1 for the only fault.
    """

    node: str
    op_type: str
    value: str
    module: str
    source: str | None
    found: Range
    expected: Range
    difference: float
    index: tuple[int, ...]
    at: tuple[float, float]
    allowed: float
    share: float


@dataclass(frozen=True)
class Finding:
    """Where accuracy is lost, and why.

    Attributes:
        lost: whether anything is; the rest is empty where nothing is.
        seen: number of the first segment out of tolerance.
        segment: number of the segment in which it is lost: `seen`, or an earlier one that left a wrong memory.
        token: tokens that each stream had consumed before the call of the graph that loses it.
        part: the part of the graph, such as "layers.1"; None where it lies in no single part.
        place: the node; None where it lies in no single node.
        cause: the likely cause.
        others: further nodes of the part that are out of tolerance, the worst first.
        parts: how far the end of each part is from the reference's in that call.
    """

    lost: bool
    seen: int | None = None
    segment: int | None = None
    token: int | None = None
    part: str | None = None
    place: Place | None = None
    cause: Cause | None = None
    others: tuple[str, ...] = ()
    parts: tuple[PartError, ...] = field(default=(), repr=False)

    @property
    def layer(self) -> str | None:
        """The part in a reader's words: "embedding", "visibility", "layer 1", "head log_probs"."""
        if self.place and self.place.module == VISIBLE:
            return "visibility"
        kind, _, rest = (self.part or "").partition(".")
        return {"opening": "embedding", "layers": f"layer {rest}", "heads": f"head {rest}"}.get(kind)

    @property
    def line(self) -> str:
        """One line: place, cause and reason."""
        if not self.lost or self.cause is None:
            return "nothing is lost: every segment is within tolerance"
        p = self.place
        where = f"{p.node} ({p.op_type}, {p.module})" if p else self.layer or f"segment {self.segment}"
        return f"accuracy is lost at {where}: {self.cause.name}, {self.cause.reason}"

    @property
    def text(self) -> str:
        """One paragraph: where, the two ranges, why, and what to do."""
        if not self.lost or self.cause is None:
            return "Nothing is lost: every segment is within tolerance."
        sentences = [self._where()]
        if self.place:
            sentences += _place(self.place)
        if self.others:
            more = f" and {len(self.others) - 3} more" if len(self.others) > 3 else ""
            sentences.append(f"Also out of tolerance there: {', '.join(self.others[:3])}{more}.")
        sentences.append(f"Likely cause: {self.cause.name}: {self.cause.reason}.")
        sentences.append(f"What to do: {self.cause.advice}.")
        return " ".join(sentences)

    def _where(self) -> str:
        where = f"segment {self.segment} (token {self.token})" + (f", {self.layer}" if self.part else "")
        if self.seen == self.segment:
            return f"Accuracy is lost in {where}."
        return f"Segment {self.seen} is the first out of tolerance, but accuracy is lost in the memory left by {where}."

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        value = dataclasses.asdict(self)
        return value | {"layer": self.layer, "line": self.line, "text": self.text}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Finding:
        """Take back what `to_dict` gave, also through JSON, where what is not finite is null.

        Raises:
            KeyError, TypeError, ValueError: something else.
        """
        given = {f.name: value[f.name] for f in dataclasses.fields(cls)}
        given["place"] = None if (place := value["place"]) is None else _place_from(place)
        given["cause"] = None if (cause := value["cause"]) is None else Cause(**cause)
        given["others"] = tuple(value["others"])
        given["parts"] = tuple(PartError(**p) for p in value["parts"])
        return cls(**given)


def _place_from(value: Mapping[str, Any]) -> Place:
    given = {**value, "index": tuple(value["index"]), "at": tuple(map(_number, value["at"]))}
    for side in ("found", "expected"):
        ends = {end: math.nan if (x := value[side][end]) is None else x for end in ("low", "high")}
        given[side] = Range(**{**value[side], **ends, "shape": tuple(value[side]["shape"])})
    return Place(**given | {name: _number(value[name]) for name in ("difference", "allowed", "share")})


def _number(x: float | None) -> float:
    return math.inf if x is None else float(x)


def _place(p: Place) -> list[str]:
    source = f" (traced from {p.source})" if p.source else ""
    return [
        f"The first node to blame is {p.node} ({p.op_type}) of {p.module}{source}.",
        f"Its output {p.value} {list(p.found.shape)} is {p.found}, expected {p.expected}; at {list(p.index)} "
        f"{p.at[0]:.6g}, expected {p.at[1]:.6g}: {p.difference:.2g} apart where rounding explains {p.allowed:.1g}.",
        f"Alone it causes {min(p.share, 1.0):.0%} of the part's error.",
    ]
