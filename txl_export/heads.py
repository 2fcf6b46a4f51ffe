"""Heads as data, without torch: what each returns and takes. The traced code is `txl_export.graphs.heads`."""

from __future__ import annotations

from dataclasses import dataclass

from txl_export.config import ModelConfig
from txl_export.errors import InputError


@dataclass(frozen=True)
class HeadOutput:
    """One output of a head: name, numpy dtype, and shape after [B, positions]."""

    name: str
    dtype: str
    tail: tuple[int, ...]


@dataclass(frozen=True)
class HeadSpec:
    """A head of a graph.

    Attributes:
        name: such as "log_probs" or "log_probs@last".
        outputs: in the graph's order.
        takes_targets: whether the graph has the input `targets`.
        last_only: whether it answers for the last position only.
    """

    name: str
    outputs: tuple[HeadOutput, ...]
    takes_targets: bool
    last_only: bool

    @property
    def kind(self) -> str:
        """The name without "@last"."""
        return self.name.partition("@")[0]


def _float(name: str, *tail: int) -> HeadOutput:
    return HeadOutput(name, "float32", tail)


def head_spec(name: str, config: ModelConfig, top_k: int) -> HeadSpec:
    """What a head returns for a model.

    Args:
        name: "log_probs", "logits", "target", "top_k" or "features", optionally with "@last".
        config: the architecture.
        top_k: how many tokens head `top_k` returns.

    Raises:
        InputError: for an unknown head.
    """
    kinds = {
        "log_probs": (_float("log_probs", config.vocab_size),),
        "logits": (_float("logits", config.vocab_size),),
        "target": (_float("target_log_probs"),),
        "top_k": (_float("top_k_log_probs", top_k), HeadOutput("top_k_ids", "int64", (top_k,))),
        "features": (_float("features", config.d_model),),
    }
    kind, at, where = name.partition("@")
    if kind not in kinds or (at and where != "last"):
        raise InputError(f"head {name!r} is unknown: use one of {', '.join(kinds)}, each also with '@last'")
    return HeadSpec(name, kinds[kind], takes_targets=kind == "target", last_only=bool(at))
