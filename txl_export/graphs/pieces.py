"""Parts that the graphs of all layouts share: embedding without branches, visibility, positions, attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_export.config import ModelConfig
from txl_export.reference.adaptive import AdaptiveEmbedding
from txl_export.reference.attention import RelativeAttention, clamped_distances, relative_shift, sinusoid


def embed(embedding: AdaptiveEmbedding, ids: Tensor) -> Tensor:
    """The embedding without data-dependent branches: every table is looked up, one result is kept.

    Args:
        embedding: the reference's, whose tables it uses.
        ids: int64 [B, L].

    Returns:
        [B, L, d_model].
    """
    out: Tensor | None = None
    for i, table in enumerate(embedding.tables):
        start, end = embedding.ends[i : i + 2]
        rows = F.embedding((ids - start).clamp(0, end - start - 1), table)
        rows = F.linear(rows, embedding.projs[i]) if embedding.config.has_projs else rows
        out = rows if out is None else torch.where((ids >= start)[..., None], rows, out)
    assert out is not None
    return out * embedding.config.d_model**0.5


def visibility(positions: Tensor, L: int, mem_len: int, window: int | None) -> Tensor:
    """The one visibility rule of all dialects, as a term to add to scores.

    Query at position q sees key at position k iff k <= q, k >= visible_from and q - k < window. Row j of
    memory and segment holds position `positions - M + j`; visible_from is the segment's start minus M, but
    not below 0, where nothing is. So only rows before position 0 and the future need the comparison.

    Args:
        positions: position of each stream's first token in the segment, int64 [B].
        L: tokens in the segment.
        mem_len: M.
        window: keys that a query sees, itself included; None for all.

    Returns:
        float32 [B, 1, L, M + L]: 0 where visible, -inf elsewhere.
    """
    row = torch.arange(mem_len + L)
    query_row = torch.arange(mem_len, mem_len + L)[:, None]
    seen = row <= query_row
    if window is not None:
        seen = seen & (query_row - row < window)
    started = positions[:, None, None, None] - mem_len + row >= 0  # [B, 1, 1, K]
    return torch.where(seen & started, 0.0, float("-inf"))


class PositionTable(nn.Module):
    """`R · W_kR` of one layer as a constant, and the terms (b) + (d) of a score by key.

    With `clamp_len` up to M the table holds clamp_len + 1 rows and the farthest stands for all beyond it;
    else it holds M + the bundle's longest segment, whichever graph it is in, so that all graphs of a bundle
    share its bytes on disk.
    """

    table: Tensor

    def __init__(self, attention: RelativeAttention, config: ModelConfig, mem_len: int, longest: int) -> None:
        """Compute the table, [H, d_head, rows], distances falling to 0: as the product takes it.

        Args:
            attention: the reference's layer.
            config: the architecture.
            mem_len: M.
            longest: tokens in the longest segment of the bundle.
        """
        super().__init__()
        self.compact = 0 < config.clamp_len <= mem_len
        rows = config.clamp_len + 1 if self.compact else mem_len + longest
        R = sinusoid(clamped_distances(rows, config.clamp_len, attention.W_kR), config.d_model)
        self.register_buffer("table", attention.heads(F.linear(R, attention.W_kR)).transpose(-1, -2).contiguous())

    def forward(self, query: Tensor, mem_len: int) -> Tensor:
        """(b) + (d) of each key: query + v, scaled, [B, H, L, d_head] -> [B, H, L, M + L]."""
        L = query.shape[-2]
        K = mem_len + L
        if self.compact:
            scores = query @ self.table  # [B, H, L, clamp_len + 1]
            farthest = scores[..., :1].expand(*scores.shape[:-1], K - self.table.shape[-1])
            scores = torch.cat([farthest, scores], dim=-1)
        else:
            scores = query @ self.table[..., self.table.shape[-1] - K :]
        # At L = 1 there is nothing to shift: key j stands at distance M - j.
        return scores if isinstance(L, int) and L == 1 else relative_shift(scores)


class Attention(nn.Module):
    """The attention of one layer given keys and values, the scale folded into query, u and v."""

    u: Tensor
    v: Tensor
    W_q: Tensor

    def __init__(
        self,
        reference: RelativeAttention,
        u: Tensor,
        v: Tensor,
        config: ModelConfig,
        mem_len: int,
        longest: int,
    ) -> None:
        """Take a layer of the reference; u and v are [H, d_head], shared or its own."""
        super().__init__()
        scale = reference.d_head**-0.5
        self.register_buffer("u", (u * scale)[:, None])
        self.register_buffer("v", (v * scale)[:, None])
        self.register_buffer("W_q", reference.W_q * scale)
        self.positions = PositionTable(reference, config, mem_len, longest)
        self.mem_len = mem_len
        self.W_o = reference.W_o
        self.norm, self.pre_lnorm, self.heads = reference.norm, reference.pre_lnorm, reference.heads

    def forward(self, h: Tensor, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """Residual, attention and LayerNorm.

        Args:
            h: hidden states of the segment, [B, L, d_model].
            query: scaled by 1 / sqrt(d_head), [B, H, L, d_head].
            key: [B, H, M + L, d_head], oldest first.
            value: like key.
            visible: from `visibility`, [B, 1, L, M + L].

        Returns:
            [B, L, d_model].
        """
        score = (query + self.u) @ key.transpose(-1, -2) + self.positions(query + self.v, self.mem_len)
        a = ((score + visible).softmax(-1) @ value).transpose(1, 2).flatten(2)
        o = h + F.linear(a, self.W_o)
        return o if self.pre_lnorm else self.norm(o)
