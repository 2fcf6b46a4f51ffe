"""The traced code of each layout: how its memory becomes keys and values, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl_export.bundle import Manifest, TensorSpec
from txl_export.graphs.pieces import Attention, Opening, OrderedPositionTable, PositionTable
from txl_export.graphs.ring import RingLayer, RingOpening, RingPositionTable
from txl_export.graphs.typed import Linear, Types, cast
from txl_export.precision import MEMORY
from txl_export.reference import TransformerXL
from txl_export.reference.attention import RelativeAttention


class HiddenLayer(nn.Module):
    """Layout `hidden`: the memory holds the layer's inputs, as in the paper; all are projected at every call."""

    def __init__(self, reference: RelativeAttention, attention: Attention) -> None:
        """Take a layer of the reference and its shared attention."""
        super().__init__()
        self.attention = a = attention
        self.W_q = Linear(a.types, "W_qkv", reference.W_q * a.scale)
        self.W_kv = Linear(a.types, "W_qkv", torch.cat([reference.W_kE, reference.W_v]))
        self.memory = a.types(MEMORY)

    def forward(self, h: Tensor, state: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Attend: h [B, L, d_model], state [mem [B, M, d_model]] -> output like h, new state."""
        a, L = self.attention, h.shape[1]
        context = torch.cat([*state, cast(h, self.memory)], dim=1)  # [B, M + L, d_model]
        x = a.norm(context) if a.pre_lnorm else context
        query = a.split_heads(self.W_q(x[:, -L:]))
        key, value = (a.split_heads(part) for part in self.W_kv(x).chunk(2, dim=-1))
        return a(h, query, key, value, *shared), [context[:, L:]] if state else []


class KeyValueLayer(nn.Module):
    """Layout `kv`: the memory holds keys and values; only the segment's tokens are projected."""

    def __init__(self, reference: RelativeAttention, attention: Attention) -> None:
        """Take a layer of the reference and its shared attention; the three projections become one product."""
        super().__init__()
        self.attention = a = attention
        weights = [reference.W_q * a.scale, reference.W_kE, reference.W_v]
        self.W_qkv = Linear(a.types, "W_qkv", torch.cat(weights))
        self.memory = a.types(MEMORY)

    def forward(self, h: Tensor, state: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Attend: h [B, L, d_model], state [key, value], [B, H, M, d_head] each -> output like h, new state."""
        a, L = self.attention, h.shape[1]
        x = a.norm(h) if a.pre_lnorm else h
        query, key, value = (a.split_heads(part) for part in self.W_qkv(x).chunk(3, dim=-1))
        if not state:
            return a(h, query, key, value, *shared), []
        key = torch.cat([state[0], cast(key, self.memory)], dim=2)  # [B, H, M + L, d_head]
        value = torch.cat([state[1], cast(value, self.memory)], dim=2)
        return a(h, query, key, value, *shared), [key[:, :, L:], value[:, :, L:]]


def hidden_state(layer: RelativeAttention, hidden: Tensor) -> list[Tensor]:
    """What layout `hidden` keeps of hidden states [B, n, d_model]: themselves."""
    del layer
    return [hidden]


def key_value_state(layer: RelativeAttention, hidden: Tensor) -> list[Tensor]:
    """What layout `kv` keeps of hidden states [B, n, d_model]: keys and values, [B, H, n, d_head] each."""
    return list(layer.keys_values(hidden))


@dataclass(frozen=True)
class TracedLayout:
    """The code of a layout.

    Attributes:
        opening: what comes before the first layer, made of (types, reference, manifest).
        layer: a layer's attention, made of the reference's and `pieces.Attention`.
        positions: a layer's position table, made of (types, the reference's attention, manifest).
        shared: what the opening gives to all layers besides hidden states, by name and type; "softmax" is the type
            of scores.
        project: the reference's view of its state, in the order of the layer's specs.
    """

    opening: Callable[[Types, TransformerXL, Manifest], nn.Module]
    layer: Callable[[RelativeAttention, Attention], nn.Module]
    positions: Callable[[Types, RelativeAttention, Manifest], PositionTable]
    shared: tuple[TensorSpec, ...]
    project: Callable[[RelativeAttention, Tensor], list[Tensor]]


_VISIBLE = TensorSpec("visible", "softmax", ("batch", 1, "segment", "keys"))
_RING = (
    TensorSpec("visible", "softmax", ("batch", 1, "segment", "rows")),
    TensorSpec("column", "int64", ("batch", "heads", "segment", "rows")),
    TensorSpec("slots", "int64", ("batch",)),
)

# One line per layout.
TRACED: dict[str, TracedLayout] = {
    "ring": TracedLayout(RingOpening, RingLayer, RingPositionTable, _RING, key_value_state),
    "kv": TracedLayout(Opening, KeyValueLayer, OrderedPositionTable, (_VISIBLE,), key_value_state),
    "hidden": TracedLayout(Opening, HiddenLayer, OrderedPositionTable, (_VISIBLE,), hidden_state),
}
