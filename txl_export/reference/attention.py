"""Relative attention (section 3.3 and appendix B of the paper)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_export.config import Dialect, ModelConfig


def sinusoid(distances: Tensor, d_model: int) -> Tensor:
    """R: the sinusoid of each distance.

    Args:
        distances: [K], in tokens, in the dtype to compute in.
        d_model: width of a row.

    Returns:
        [K, d_model], sines in the first half and cosines in the second, as in the authors' code.
    """
    exponents = torch.arange(0.0, d_model, 2.0, dtype=distances.dtype, device=distances.device) / d_model
    angles = torch.outer(distances, 1 / (10000**exponents))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def clamped_distances(n: int, clamp_len: int, like: Tensor) -> Tensor:
    """Distances n - 1, ..., 1, 0, none above `clamp_len` where that is positive; [n] in the dtype of `like`."""
    distances = torch.arange(n - 1, -1, -1, dtype=like.dtype, device=like.device)
    return distances.clamp(max=clamp_len) if clamp_len > 0 else distances


def relative_shift(x: Tensor) -> Tensor:
    """Move row i left by L - 1 - i columns, so that columns of distances become columns of keys.

    Appendix B: of `x [..., L, K]`, whose column r belongs to distance K - 1 - r, return `[..., L, K]` whose
    column j belongs to key j, at distance K - L + i - j of query i. Entries with j > K - L + i (keys that
    come after the query) are left over from other rows and must be masked.
    """
    L, K = x.shape[-2:]
    padded = F.pad(x, (1, 0))  # [..., L, K + 1]
    return padded.reshape(*x.shape[:-2], K + 1, L)[..., 1:, :].reshape(x.shape)


class RelativeAttention(nn.Module):
    """One layer's multi-head attention over memory and segment, with its residual and LayerNorm."""

    def __init__(self, config: ModelConfig, dialect: Dialect) -> None:
        """Make the parameters W_q, W_kE, W_kR, W_v, W_o and, where not shared by all layers, u and v."""
        super().__init__()
        self.n_head, self.d_head, self.pre_lnorm = config.n_head, config.d_head, config.pre_lnorm
        heads = config.n_head * config.d_head
        if config.untie_r:
            self.u = nn.Parameter(torch.empty(config.n_head, config.d_head))
            self.v = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.W_q = nn.Parameter(torch.empty(heads, config.d_model))
        self.W_kE = nn.Parameter(torch.empty(heads, config.d_model))
        self.W_v = nn.Parameter(torch.empty(heads, config.d_model))
        self.W_kR = nn.Parameter(torch.empty(heads, config.d_model))
        self.W_o = nn.Parameter(torch.empty(config.d_model, heads))
        self.norm = nn.LayerNorm(config.d_model, eps=dialect.layer_norm_eps)
        self.dropout, self.dropatt = nn.Dropout(config.dropout), nn.Dropout(config.dropatt)

    def heads(self, x: Tensor) -> Tensor:
        """[..., K, H * d_head] -> [..., H, K, d_head]."""
        return x.unflatten(-1, (self.n_head, self.d_head)).transpose(-3, -2)

    def keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of remembered tokens: [B, K, d_model] -> two of [B, H, K, d_head].

        With pre-LN the memory holds un-normalised states, so the norm comes first (a row of zeros becomes
        the norm's bias).
        """
        x = self.norm(context) if self.pre_lnorm else context
        return self.heads(F.linear(x, self.W_kE)), self.heads(F.linear(x, self.W_v))

    def forward(self, h: Tensor, memory: Tensor, R: Tensor, visible: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Attend from the segment to memory and segment.

        Args:
            h: hidden states of the segment, [B, L, d_model].
            memory: hidden states before it, [B, n, d_model]; K = n + L.
            R: sinusoids of the distances K - 1 ... 0, [K, d_model].
            visible: which key each query sees, bool [B or 1, 1, L, K].
            u: bias of the queries in term (c), [H, d_head].
            v: bias of the queries in term (d), [H, d_head].

        Returns:
            [B, L, d_model].
        """
        x = self.norm(h) if self.pre_lnorm else h
        query = self.heads(F.linear(x, self.W_q))  # [B, H, L, d_head]
        key, value = self.keys_values(torch.cat([memory, h], dim=1))  # [B, H, K, d_head]
        key_R = self.heads(F.linear(R, self.W_kR))  # [H, K, d_head]

        # The four terms of A^rel: (a) query and content, (b) query and distance, (c) content alone, (d) distance
        # alone. (a) + (c) share the key, (b) + (d) share R, so two products give all four.
        a_c = (query + u[:, None]) @ key.transpose(-1, -2)  # [B, H, L, K]
        b_d = relative_shift((query + v[:, None]) @ key_R.transpose(-1, -2))  # [B, H, L, K]
        score = (a_c + b_d) / self.d_head**0.5

        attention = self.dropatt(score.masked_fill(~visible, float("-inf")).softmax(dim=-1))
        a = (attention @ value).transpose(1, 2).flatten(2)  # [B, L, H * d_head]
        o = h + self.dropout(F.linear(a, self.W_o))
        return o if self.pre_lnorm else self.norm(o)
