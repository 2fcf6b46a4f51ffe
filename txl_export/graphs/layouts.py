"""The traced attention of each layout: how its memory becomes keys and values, and what is remembered."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_export.graphs.pieces import Attention
from txl_export.graphs.typed import Linear, cast
from txl_export.precision import MEMORY
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

    def forward(self, h: Tensor, state: list[Tensor], visible: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Attend: h [B, L, d_model], state [mem [B, M, d_model]] -> output like h, new state."""
        a, L = self.attention, h.shape[1]
        context = torch.cat([*state, cast(h, self.memory)], dim=1)  # [B, M + L, d_model]
        x = a.norm(context) if a.pre_lnorm else context
        query = a.heads(self.W_q(x[:, a.mem_len :]))
        key, value = (a.heads(part) for part in self.W_kv(x).chunk(2, dim=-1))
        return a(h, query, key, value, visible), [context[:, L:]] if state else []


class KeyValueLayer(nn.Module):
    """Layout `kv`: the memory holds keys and values; only the segment's tokens are projected."""

    def __init__(self, reference: RelativeAttention, attention: Attention) -> None:
        """Take a layer of the reference and its shared attention; the three projections become one product."""
        super().__init__()
        self.attention = a = attention
        weights = [reference.W_q * a.scale, reference.W_kE, reference.W_v]
        self.W_qkv = Linear(a.types, "W_qkv", torch.cat(weights))
        self.memory = a.types(MEMORY)

    def forward(self, h: Tensor, state: list[Tensor], visible: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Attend: h [B, L, d_model], state [key, value], [B, H, M, d_head] each -> output like h, new state."""
        a, L = self.attention, h.shape[1]
        x = a.norm(h) if a.pre_lnorm else h
        query, key, value = (a.heads(part) for part in self.W_qkv(x).chunk(3, dim=-1))
        if not state:
            return a(h, query, key, value, visible), []
        key = torch.cat([state[0], cast(key, self.memory)], dim=2)  # [B, H, M + L, d_head]
        value = torch.cat([state[1], cast(value, self.memory)], dim=2)
        return a(h, query, key, value, visible), [key[:, :, L:], value[:, :, L:]]


def hidden_state(layer: RelativeAttention, hidden: Tensor) -> list[Tensor]:
    """What layout `hidden` keeps of hidden states [B, n, d_model]: themselves."""
    del layer
    return [hidden]


def key_value_state(layer: RelativeAttention, hidden: Tensor) -> list[Tensor]:
    """What layout `kv` keeps of hidden states [B, n, d_model]: keys and values, [B, H, n, d_head] each."""
    return list(layer.keys_values(hidden))


# One line per layout each: the traced layer, and the reference's view of its state in the order of its specs.
LAYERS: dict[str, type[HiddenLayer] | type[KeyValueLayer]] = {"hidden": HiddenLayer, "kv": KeyValueLayer}
PROJECTIONS = {"hidden": hidden_state, "kv": key_value_state}
