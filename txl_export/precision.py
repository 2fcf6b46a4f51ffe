"""Precision policies: in which type each product of a graph is computed and the memory is kept. No torch here.

A graph's products have names, the same in every layout:

    embedding                  rows of the embedding tables and their projection
    layers.N.W_qkv             queries, keys and values of layer N
    layers.N.content           terms (a) + (c) of the attention score
    layers.N.positions         terms (b) + (d)
    layers.N.values            the weighted sum of values
    layers.N.W_o, .W_1, .W_2   attention output and feed-forward
    logits                     the softmax layer's product

four more names stand for what joins them, in fp32 unless overridden: `residual` (the stream between layers), `norm`
(LayerNorm), `softmax` (scores, mask and attention weights) and `log_softmax`; and `memory` for the memory tensors.

A precision is a number type that a product computes in (`txl_export.number_types.TYPES`), or a format of few bits that
its weights are stored in (`FORMATS`) while all else is fp32: only products with weights of the model have the latter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from txl_export.errors import InputError
from txl_export.number_types import FORMATS, PRECISIONS, TYPES, WeightFormat

JOINTS = ("residual", "norm", "softmax", "log_softmax")
MEMORY = "memory"
LAYER_PRODUCTS = ("W_qkv", "content", "positions", "values", "W_o", "W_1", "W_2")
# Products with weights of the model; of the embedding these are the projections, rows of its tables are looked up.
WEIGHTED = ("embedding", "W_qkv", "W_o", "W_1", "W_2", "logits")
# Products that go straight into an exponential: an error of x there is a factor of e^x in a probability.
SCORES = ("content", "positions", "logits")

# A calibration text does not hold the largest value there is: what it shows may grow by this factor.
HEADROOM = 8.0


def tensor_names(n_layer: int) -> list[str]:
    """All names of a model with so many layers."""
    of_layers = (f"layers.{n}.{p}" for n in range(n_layer) for p in LAYER_PRODUCTS)
    return ["embedding", *of_layers, "logits", *JOINTS, MEMORY]


@dataclass(frozen=True)
class Choice:
    """The precision of one name, and why.

    Attributes:
        precision: a key of `txl_export.number_types.PRECISIONS`.
        largest: largest magnitude that calibration saw there, operands included; None without calibration.
        result: likewise, of the result alone.
        why: in words.
    """

    precision: str
    largest: float | None = None
    result: float | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class PrecisionPolicy:
    """Which precision each product, joint and the memory of a graph has.

    Attributes:
        precision: of products and of the memory where `choices` does not name them; a format of weights is that of
            products with weights only.
        choices: by name.
        calibration: what was run to choose them, in words; "" where nothing was.
    """

    precision: str = "fp32"
    choices: Mapping[str, Choice] = field(default_factory=dict)
    calibration: str = ""

    def __post_init__(self) -> None:
        """Refuse what does not exist, and two precisions besides fp32 in one graph; raises InputError."""
        if self.precision not in PRECISIONS:
            raise InputError(f"precision {self.precision!r} is not available: use one of {', '.join(PRECISIONS)}")
        for name, choice in self.choices.items():
            allowed = dict.fromkeys(p for p in ("fp32", self.precision) if _takes(name, p))
            if choice.precision not in allowed:
                why = "" if _takes(name, self.precision) else f", which only weights of the model have ({_weighted()})"
                raise InputError(
                    f"{name} cannot be in {choice.precision!r} in a bundle of {self.precision}{why}: "
                    f"use {' or '.join(allowed)}"
                )

    @classmethod
    def uniform(cls, precision: str) -> PrecisionPolicy:
        """Everything in one precision, joints too: for fp32 the usual, for a half precision the naive way.

        For a format of weights all products that have some.
        """
        joints = () if precision == "fp32" or precision in FORMATS else JOINTS
        return cls(precision, {name: Choice(precision, why="uniform") for name in joints})

    def of(self, name: str) -> str:
        """The precision of a product, a joint or the memory."""
        if name in self.choices:
            return self.choices[name].precision
        return self.precision if name not in JOINTS and _takes(name, self.precision) else "fp32"

    def dtype(self, name: str) -> str:
        """Numpy's name of the type of a product's result, a joint or the memory."""
        return PRECISIONS[self.of(name)].dtype

    def format(self, name: str) -> WeightFormat | None:
        """How the weights of a product are stored; None where they are numbers of its type."""
        return FORMATS.get(self.of(name))

    @property
    def weights_only(self) -> bool:
        """Whether it is about how weights are stored, and everything is computed in fp32."""
        return PRECISIONS[self.precision].weights_only

    def overridden(self, overrides: Mapping[str, str], n_layer: int) -> PrecisionPolicy:
        """The same with other precisions for some names.

        Args:
            overrides: precision by name; names may hold "*" and "?" ("layers.*.W_1").
            n_layer: layers of the model.

        Raises:
            InputError: a name that matches nothing, or a precision that is neither fp32 nor this policy's.
        """
        known = tensor_names(n_layer)
        choices = dict(self.choices)
        for pattern, precision in overrides.items():
            named = [n for n in known if fnmatchcase(n, pattern)]
            if not named:
                raise InputError(f"no tensor is named {pattern!r}: names are {', '.join(_short(known))}")
            for name in named:
                was = choices.get(name, Choice(precision))
                choices[name] = dataclasses.replace(was, precision=precision, why="overridden")
        return dataclasses.replace(self, choices=choices)

    def describe(self) -> list[str]:
        """For people, a line each: how it was chosen, and which products are not in the policy's precision."""
        if self.precision == "fp32":
            return []
        how = f"chosen on {self.calibration}" if self.calibration else "not calibrated"
        joints = ", ".join(f"{n} {self.of(n)}" for n in (MEMORY, *JOINTS))
        rest = "weights only, all else fp32" if self.weights_only else joints
        return [f"{self.precision}, {how}; {rest}", *map(self._exception, _by_kind(self.in_fp32()))]

    def in_fp32(self) -> list[str]:
        """Names of the products that stay in fp32."""
        return [n for n, c in self.choices.items() if c.precision == "fp32" and n not in (*JOINTS, MEMORY)]

    def _exception(self, names: list[str]) -> str:
        worst = max((self.choices[n] for n in names), key=lambda c: c.largest or 0.0)
        layers = [n.split(".")[1] for n in names if n.startswith("layers.")]
        where = f" of layers {', '.join(layers)}" if layers else ""
        return f"fp32: {names[0].rpartition('.')[2]}{where}: {worst.why}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict that `from_dict` takes back."""
        return {
            "precision": self.precision,
            "choices": {name: c.to_dict() for name, c in self.choices.items()},
            "calibration": self.calibration,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PrecisionPolicy:
        """Take back what `to_dict` gave; raises KeyError, TypeError, ValueError or InputError for anything else."""
        choices = {str(name): Choice(**c) for name, c in value["choices"].items()}
        if not all(isinstance(c.why, str) for c in choices.values()):
            raise ValueError("a reason is no text")
        if not all(_is_size(x) for c in choices.values() for x in (c.largest, c.result)):
            raise ValueError("a largest value is no number of 0 or more")
        return cls(value["precision"], choices, str(value["calibration"]))


def choose(name: str, precision: str, operands: float, result: float) -> Choice:
    """The precision of a product, from the largest magnitudes that a calibration saw.

    Args:
        name: of the product.
        precision: the half precision to use where it holds the numbers.
        operands: largest magnitude of what goes in, weights included; not finite where it overflowed fp32.
        result: largest magnitude of what comes out.
    """
    number, largest = TYPES[precision], max(operands, result)
    moved = number.half_unit(result)
    if not largest * HEADROOM <= number.largest:
        why = f"{largest:.3g} comes within {HEADROOM:g} times of {number.largest:.3g}, the largest in {precision}"
        return Choice("fp32", _finite(largest), _finite(result), why)
    if name.rpartition(".")[2] in SCORES and moved > number.resolution:
        why = f"{precision} rounds {result:.3g} by up to {moved:.2g} nats, more than {number.resolution:.2g}"
        return Choice("fp32", _finite(largest), _finite(result), why)
    return Choice(precision, _finite(largest), _finite(result), f"holds {largest:.3g}")


def _takes(name: str, precision: str) -> bool:
    """Whether a name can have a precision at all."""
    return precision not in FORMATS or name.rpartition(".")[2] in WEIGHTED


def _weighted() -> str:
    return ", ".join(WEIGHTED)


def _finite(x: float) -> float | None:
    return float(f"{x:.6g}") if math.isfinite(x) else None


def _is_size(x: object) -> bool:
    return x is None or (isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < math.inf)


def _by_kind(names: Iterable[str]) -> list[list[str]]:
    """Names grouped by the product they name, layers together."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(name.rpartition(".")[2], []).append(name)
    return list(kinds.values())


def _short(names: Iterable[str]) -> list[str]:
    """The names, those of layers written once with N."""
    return list(dict.fromkeys(".".join("N" if p.isdecimal() else p for p in n.split(".")) for n in names))
