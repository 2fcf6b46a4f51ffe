"""Parts that the graphs of all layouts share: embedding without branches, visibility, positions, attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_export.config import ModelConfig
from txl_export.graphs.typed import Linear, Norm, Product, Types, cast, in_type
from txl_export.reference import model as reference_model
from txl_export.reference.adaptive import AdaptiveEmbedding
from txl_export.reference.attention import RelativeAttention, clamped_distances, relative_shift, sinusoid


class Embedding(Product):
    """The embedding without data-dependent branches: every table is looked up, one result is kept."""

    def __init__(self, types: Types, reference: AdaptiveEmbedding) -> None:
        """Take the reference's tables and projections."""
        super().__init__(types, "embedding")
        self.reference, self.residual = in_type(reference, self.dtype), types("residual")
        self.projs = nn.ModuleList(Linear(types, "embedding", proj) for proj in reference.projs)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        """int64 [B, L] -> [B, L, d_model], in the type of the residual stream."""
        r = self.reference
        out: Tensor | None = None
        for i, table in enumerate(r.tables):
            start, end = r.ends[i : i + 2]
            rows = F.embedding((ids - start).clamp(0, end - start - 1), table)
            rows = self.projs[i](rows) if r.config.has_projs else rows
            out = rows if out is None else torch.where((ids >= start)[..., None], rows, out)
        assert out is not None
        return cast(out, self.residual) * r.config.d_model**0.5


def visibility(positions: Tensor, L: int, mem_len: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """The one visibility rule of all dialects, as a term to add to scores.

    Query at position q sees key at position k iff k <= q, k >= visible_from and q - k < window. Row j of
    memory and segment holds position `positions - M + j`; visible_from is the segment's start minus M, but
    not below 0, where nothing is. So only rows before position 0 and the future need the comparison.

    Args:
        positions: position of each stream's first token in the segment, int64 [B].
        L: tokens in the segment.
        mem_len: M.
        window: keys that a query sees, itself included; None for all.
        dtype: of the scores. -inf exists in every type and no score of a visible key turns it into another
            number, where a large negative one could overflow.

    Returns:
        [B, 1, L, M + L]: 0 where visible, -inf elsewhere.
    """
    row = torch.arange(mem_len + L)
    query_row = torch.arange(mem_len, mem_len + L)[:, None]
    seen = row <= query_row
    if window is not None:
        seen = seen & (row > query_row - window)  # no [L, M + L] of integers: a fixed segment makes it a constant
    started = positions[:, None, None, None] - mem_len + row >= 0  # [B, 1, 1, K]
    return torch.where(seen & started, torch.tensor(0.0, dtype=dtype), torch.tensor(float("-inf"), dtype=dtype))


class PositionTable(Product):
    """`R · W_kR` of one layer as a constant, and the terms (b) + (d) of a score by key.

    With `clamp_len` up to M the table holds clamp_len + 1 rows and the farthest stands for all beyond it;
    else it holds M + the bundle's longest segment, whichever graph it is in, so that all graphs of a bundle
    share its bytes on disk.
    """

    table: Tensor

    def __init__(
        self, types: Types, attention: RelativeAttention, config: ModelConfig, mem_len: int, longest: int
    ) -> None:
        """Compute the table, [H, d_head, rows], distances falling to 0: as the product takes it.

        Args:
            types: of the layer.
            attention: the reference's layer.
            config: the architecture.
            mem_len: M.
            longest: tokens in the longest segment of the bundle.
        """
        super().__init__(types, "positions")
        self.compact = 0 < config.clamp_len <= mem_len
        rows = config.clamp_len + 1 if self.compact else mem_len + longest
        R = sinusoid(clamped_distances(rows, config.clamp_len, attention.W_kR), config.d_model)
        table = attention.heads(F.linear(R, attention.W_kR)).transpose(-1, -2).contiguous()
        self.register_buffer("table", cast(table, self.dtype))

    def forward(self, query: Tensor, mem_len: int) -> Tensor:  # type: ignore[override]
        """(b) + (d) of each key: query + v, scaled, [B, H, L, d_head] -> [B, H, L, M + L]."""
        L = query.shape[-2]
        K = mem_len + L
        query = cast(query, self.dtype)
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

    def __init__(
        self,
        types: Types,
        reference: RelativeAttention,
        u: Tensor,
        v: Tensor,
        config: ModelConfig,
        mem_len: int,
        longest: int,
    ) -> None:
        """Take a layer of the reference; u and v are [H, d_head], shared or its own."""
        super().__init__()
        self.types, self.mem_len = types, mem_len
        self.scale = reference.d_head**-0.5
        self.content, self.weighted = Product(types, "content"), Product(types, "values")
        self.positions = PositionTable(types, reference, config, mem_len, longest)
        self.register_buffer("u", cast((u * self.scale)[:, None], self.content.dtype))
        self.register_buffer("v", cast((v * self.scale)[:, None], self.positions.dtype))
        self.W_o = Linear(types, "W_o", reference.W_o)
        self.norm, self.pre_lnorm, self.heads = Norm(types, reference.norm), reference.pre_lnorm, reference.heads

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
        a_c = self.content(cast(query, self.u.dtype) + self.u, key.transpose(-1, -2))
        b_d = self.positions(cast(query, self.v.dtype) + self.v, self.mem_len)
        score = cast(a_c, visible.dtype) + cast(b_d, visible.dtype)
        a = self.weighted((score + visible).softmax(-1), value).transpose(1, 2).flatten(2)
        o = h + cast(self.W_o(a), h.dtype)
        return o if self.pre_lnorm else cast(self.norm(o), h.dtype)


class FeedForward(nn.Module):
    """The position-wise feed-forward layer with its residual and LayerNorm."""

    def __init__(self, types: Types, reference: reference_model.FeedForward) -> None:
        """Take a layer of the reference."""
        super().__init__()
        self.W_1 = Linear(types, "W_1", reference.W_1, reference.b_1)
        self.W_2 = Linear(types, "W_2", reference.W_2, reference.b_2)
        self.norm, self.pre_lnorm = Norm(types, reference.norm), reference.pre_lnorm

    def forward(self, o: Tensor) -> Tensor:
        """[B, L, d_model] -> [B, L, d_model]."""
        x = self.norm(o) if self.pre_lnorm else o
        out = o + cast(self.W_2(self.W_1(x).relu()), o.dtype)
        return out if self.pre_lnorm else cast(self.norm(out), o.dtype)
