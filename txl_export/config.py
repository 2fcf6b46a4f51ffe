"""What a model is: its architecture (`ModelConfig`) and the behaviours in which origins differ (`Dialect`).

Both are frozen, validated when made, and free of torch. Sources of the fields: Dai et al. 2019
("Transformer-XL", arXiv:1901.02860) and the options of the public implementations.
"""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txl_export.errors import ConfigError

# Beyond any model: a number above these comes from a damaged file, and must not be counted to.
MOST, MOST_LAYERS, MOST_CUTOFFS = 2**31 - 1, 4096, 64
# Found values may come from a file and be anything, of any size and depth.
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = 20
_REPR.maxstring = _REPR.maxother = 100
INITIAL_MEMORIES = ("empty", "zeros")
CLUSTER_ORDERS = ("forward", "reversed")


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a Transformer-XL and the evaluation values stored with it.

    Attributes:
        vocab_size: number of tokens V.
        n_layer: number of layers N.
        n_head: attention heads H per layer.
        d_model: width of the hidden states.
        d_head: width of one head; `n_head * d_head` need not equal `d_model`.
        d_inner: width of the feed-forward layer.
        d_embed: width of the first embedding table; projected to `d_model` where they differ.
        cutoffs: first token of each tail cluster of the adaptive softmax, ascending; empty for a plain softmax.
        div_val: cluster i is embedded in `d_embed // div_val**i` numbers.
        tie_weight: the softmax uses the embedding tables as its weights.
        tie_projs: per cluster, whether the softmax uses the embedding's projection.
        pre_lnorm: LayerNorm before attention and feed-forward (True) or after the residual (False, the paper).
        untie_r: `u` and `v` per layer (True) or one pair for all layers (False).
        mem_len: memory length M in tokens that evaluation uses unless told otherwise.
        clamp_len: distances above it share its row of R; -1 or 0 for none.
        same_length: every query sees equally many keys (see `Dialect.window_extra`).
        dropout: dropout probability of hidden states, in training only.
        dropatt: dropout probability of attention weights, in training only.
        attn_type: 0, the paper's; others are refused.
    """

    vocab_size: int
    n_layer: int
    n_head: int
    d_model: int
    d_head: int
    d_inner: int
    d_embed: int = 0
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    tie_weight: bool = True
    tie_projs: tuple[bool, ...] = ()
    pre_lnorm: bool = False
    untie_r: bool = False
    mem_len: int = 0
    clamp_len: int = -1
    same_length: bool = False
    dropout: float = 0.0
    dropatt: float = 0.0
    attn_type: int = 0

    def __post_init__(self) -> None:
        """Fill derived defaults and check every field; raises ConfigError."""
        set_ = object.__setattr__  # frozen: derived defaults are written once, here
        if not self.d_embed:
            set_(self, "d_embed", self.d_model)
        set_(self, "cutoffs", _sequence("cutoffs", self.cutoffs, _is_int, "integers"))
        n_clusters = len(self.cutoffs) + 1
        tie_projs = _sequence("tie_projs", self.tie_projs, _is_bool, "true or false")
        set_(self, "tie_projs", tie_projs or (False,) * n_clusters)
        self._check()

    def _check(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val"):
            value, most = getattr(self, name), MOST_LAYERS if name == "n_layer" else MOST
            _require(_is_int(value) and 1 <= value <= most, name, value, f"a positive integer up to {most}")
        _require(self.d_model % 2 == 0, "d_model", self.d_model, "an even number (half sines, half cosines)")
        most = MOST_CUTOFFS
        _require(len(self.cutoffs) <= most, "cutoffs", list(self.cutoffs), f"up to {most} numbers")
        ends = (0, *self.cutoffs, self.vocab_size)
        rising = all(a < b for a, b in itertools.pairwise(ends))
        _require(
            rising,
            "cutoffs",
            list(self.cutoffs),
            f"rising numbers between 0 and vocab_size = {self.vocab_size}",
        )
        n_clusters = len(self.cutoffs) + 1
        smallest = self.d_embed // self.div_val ** len(self.cutoffs)
        _require(
            smallest >= 1,
            "div_val",
            self.div_val,
            f"small enough to leave the last of {n_clusters} clusters a width",
        )
        _require(
            len(self.tie_projs) == n_clusters,
            "tie_projs",
            list(self.tie_projs),
            f"{n_clusters} entries, one per cluster",
        )
        fits = _is_int(self.mem_len) and 0 <= self.mem_len <= MOST
        _require(fits, "mem_len", self.mem_len, f"an integer of 0 to {MOST}")
        _require(_is_int(self.clamp_len), "clamp_len", self.clamp_len, "an integer (-1 for none)")
        for name in ("dropout", "dropatt"):
            value = getattr(self, name)
            _require(_is_number(value) and 0 <= value < 1, name, value, "a number in [0, 1)")
        for name in ("tie_weight", "pre_lnorm", "untie_r", "same_length"):
            _require(_is_bool(getattr(self, name)), name, getattr(self, name), "true or false")
        _require(
            _is_int(self.attn_type) and self.attn_type == 0,
            "attn_type",
            self.attn_type,
            "0, the paper's attention",
        )

    @property
    def cluster_ends(self) -> tuple[int, ...]:
        """Boundaries of the clusters: (0, cutoffs..., V)."""
        return (0, *self.cutoffs, self.vocab_size)

    @property
    def n_tails(self) -> int:
        """Number of tail clusters."""
        return len(self.cutoffs)

    @property
    def has_projs(self) -> bool:
        """Whether embedding and softmax carry projections (with `div_val` above 1 always, as upstream)."""
        return self.div_val > 1 or self.d_embed != self.d_model

    def cluster_width(self, i: int) -> int:
        """Embedding width of cluster i."""
        return self.d_embed // self.div_val**i

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict that `from_dict` takes back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Make a config of a mapping; raises ConfigError for unknown or missing names."""
        return cls(**_checked_fields(cls, values))


@dataclass(frozen=True)
class Dialect:
    """Behaviours in which implementations differ, as data: nothing else in the package asks for the origin.

    Attributes:
        initial_memory: "empty" (nothing to attend to at first; the paper, kimiyoung, NVIDIA) or "zeros"
            (M rows of zeros that are attended to; Hugging Face, TensorFlow).
        window_extra: with `same_length` a query sees M + window_extra keys, itself included: 0 (kimiyoung,
            Hugging Face) or 1 (NVIDIA, TensorFlow).
        cluster_order: which row of the cluster weights belongs to tail i: "forward" (row i; Hugging Face,
            TensorFlow) or "reversed" (the last row belongs to the first tail; kimiyoung, NVIDIA).
        layer_norm_eps: epsilon of every LayerNorm.
    """

    initial_memory: str = "empty"
    window_extra: int = 0
    cluster_order: str = "forward"
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Check every field; raises ConfigError."""
        _require(
            self.initial_memory in INITIAL_MEMORIES,
            "initial_memory",
            self.initial_memory,
            " or ".join(INITIAL_MEMORIES),
        )
        _require(
            _is_int(self.window_extra) and self.window_extra in (0, 1), "window_extra", self.window_extra, "0 or 1"
        )
        _require(
            self.cluster_order in CLUSTER_ORDERS,
            "cluster_order",
            self.cluster_order,
            " or ".join(CLUSTER_ORDERS),
        )
        eps = self.layer_norm_eps
        _require(_is_number(eps) and 0 < eps < 1, "layer_norm_eps", eps, "a number between 0 and 1")

    def cluster_row(self, tail: int, n_tails: int) -> int:
        """Row of the cluster weights that gives the probability of tail cluster `tail` (0-based)."""
        return tail if self.cluster_order == "forward" else n_tails - 1 - tail

    def window(self, config: ModelConfig, mem_len: int) -> int | None:
        """How many keys a query sees under `same_length`, itself included; None when unbounded.

        Raises:
            ConfigError: when the window would be empty (`same_length` with no memory and window_extra 0).
        """
        if not config.same_length:
            return None
        window = mem_len + self.window_extra
        if window < 1:
            raise ConfigError("same_length with mem_len 0 leaves a query no key to see: give a mem_len of 1 or more")
        return window

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict that `from_dict` takes back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Dialect:
        """Make a dialect of a mapping; raises ConfigError for unknown names."""
        return cls(**_checked_fields(cls, values))


# Evaluation values that upstream takes from the command line rather than from the checkpoint.
OVERRIDABLE_CONFIG = ("mem_len", "clamp_len", "same_length")
OVERRIDABLE_DIALECT = tuple(f.name for f in dataclasses.fields(Dialect))
# Of the model itself: given only for files that do not hold it, such as bare state dicts.
ARCHITECTURE = tuple(
    f.name for f in dataclasses.fields(ModelConfig) if f.name not in (*OVERRIDABLE_CONFIG, "dropout", "dropatt")
)


def apply_overrides(
    config: ModelConfig, dialect: Dialect, overrides: Mapping[str, Any] | None
) -> tuple[ModelConfig, Dialect]:
    """Replace evaluation values by the caller's.

    Args:
        config: the stored architecture.
        dialect: the origin's dialect.
        overrides: names out of `OVERRIDABLE_CONFIG`, the fields of `Dialect`, and `ARCHITECTURE`, whose values
            must be those of `config`; None values are ignored.

    Raises:
        ConfigError: for a name that cannot be overridden, or a value that does not fit.
    """
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    for name, value in given.items():
        if name not in OVERRIDABLE_CONFIG + OVERRIDABLE_DIALECT + ARCHITECTURE:
            known = ", ".join(OVERRIDABLE_CONFIG + OVERRIDABLE_DIALECT)
            raise ConfigError(f"override '{name}' is unknown or not an evaluation value: use one of {known}")
        if name in ARCHITECTURE:
            _require_same(name, value, getattr(config, name))
    config = dataclasses.replace(config, **{k: v for k, v in given.items() if k in OVERRIDABLE_CONFIG})
    dialect = dataclasses.replace(dialect, **{k: v for k, v in given.items() if k in OVERRIDABLE_DIALECT})
    return config, dialect


def _require_same(name: str, value: object, found: object) -> None:
    if (tuple(value) if isinstance(value, list) else value) != found:
        raise ConfigError(f"override '{name}' is {value!r}, the model has {found!r}: only evaluation values can change")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sequence(name: str, value: object, fits: Callable[[object], bool], expected: str) -> tuple[Any, ...]:
    ok = isinstance(value, list | tuple) and all(fits(item) for item in value)
    _require(ok, name, value, f"a list of {expected}")
    return tuple(value)  # type: ignore[arg-type]


def _require(ok: bool, name: str, found: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name} is {_REPR.repr(found)}, expected {expected}")


def _checked_fields(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ConfigError(f"{cls.__name__} has no field {', '.join(unknown)}: known are {', '.join(fields)}")
    required = {n for n, f in fields.items() if f.default is dataclasses.MISSING}
    missing = sorted(required - set(values))
    if missing:
        raise ConfigError(f"{cls.__name__} lacks {', '.join(missing)}")
    return dict(values)
