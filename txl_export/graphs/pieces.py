"""Parts that the graphs of all layouts share: embedding without branches, visibility, positions, attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_export.bundle import Manifest
from txl_export.config import ModelConfig
from txl_export.graphs.typed import Linear, Norm, Product, Types, cast, in_type
from txl_export.reference import model as reference_model
from txl_export.reference.adaptive import AdaptiveEmbedding
from txl_export.reference.attention import RelativeAttention, clamped_distances, relative_shift, sinusoid


class Embedding(Product):
    """The embedding without data-dependent branches: every table is looked up, one result is kept."""

    scale: Tensor

    def __init__(self, types: Types, reference: AdaptiveEmbedding) -> None:
        """Take the reference's tables and projections."""
        super().__init__(types, "embedding")
        self.reference, self.residual = in_type(reference, self.dtype), types("residual")
        self.projs = nn.ModuleList(Linear(types, "embedding", proj) for proj in reference.projs)
        # A vector: runtimes fold a single number into the first layer's product, for which they have no fast kernel.
        width = reference.config.d_model
        self.register_buffer("scale", torch.full((width,), width**0.5, dtype=self.residual))

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
        return cast(out, self.residual) * self.scale


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


class Opening(nn.Module):
    """Everything before the first layer, where rows are ordered by age."""

    def __init__(self, types: Types, model: reference_model.TransformerXL, manifest: Manifest) -> None:
        """Take the reference's embedding and the bundle's M."""
        super().__init__()
        self.embedding, self.mem_len = Embedding(types, model.embedding), manifest.mem_len
        self.window = model.dialect.window(model.config, manifest.mem_len)
        self.scores = types("softmax")

    def forward(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """int64 [B, L] and [B] -> hidden states [B, L, d_model], `visibility` [B, 1, L, M + L], new positions."""
        L = input_ids.shape[1]
        visible = visibility(positions, L, self.mem_len, self.window, self.scores)
        return self.embedding(input_ids), [visible], positions + L


class PositionTable(Product):
    """`R · W_kR` of one layer as a constant, from which the terms (b) + (d) of a score come."""

    table: Tensor

    def __init__(self, types: Types, reference: RelativeAttention, config: ModelConfig, rows: int) -> None:
        """Compute the table, [H, d_head, rows], distances falling to 0: as the product takes it.

        Args:
            types: of the layer.
            reference: its attention.
            config: the architecture.
            rows: one for each distance.
        """
        super().__init__(types, "positions")
        R = sinusoid(clamped_distances(rows, config.clamp_len, reference.W_kR), config.d_model)
        table = reference.heads(F.linear(R, reference.W_kR)).transpose(-1, -2).contiguous()
        self.register_buffer("table", cast(table, self.dtype))


class OrderedPositionTable(PositionTable):
    """The terms by key where keys are ordered by age.

    With `clamp_len` up to M the table holds clamp_len + 1 rows and the farthest stands for all beyond it;
    else it holds M + the bundle's longest segment, whichever graph it is in, so that all graphs of a bundle
    share its bytes on disk.
    """

    def __init__(self, types: Types, reference: RelativeAttention, manifest: Manifest) -> None:
        """Take a layer of the reference and the bundle's lengths."""
        config, M = manifest.config, manifest.mem_len
        compact = 0 < config.clamp_len <= M
        super().__init__(types, reference, config, config.clamp_len + 1 if compact else M + manifest.longest)
        self.compact, self.mem_len = compact, M

    def forward(self, query: Tensor) -> Tensor:  # type: ignore[override]
        """(b) + (d) of each key: query + v, scaled, [B, H, L, d_head] -> [B, H, L, M + L]."""
        L = query.shape[-2]
        K = self.mem_len + L
        query = cast(query, self.dtype)
        if self.compact:
            scores = query @ self.table  # [B, H, L, clamp_len + 1]
            farthest = scores[..., :1].expand(*scores.shape[:-1], K - self.table.shape[-1])
            scores = torch.cat([farthest, scores], dim=-1)
        else:
            scores = query @ self.table[..., self.table.shape[-1] - K :]
        # At L = 1 there is nothing to shift: key j stands at distance M - j.
        return scores if one_token(L) else relative_shift(scores)


def one_token(L: int | torch.SymInt) -> bool:
    """Whether a graph is made for calls of a single token."""
    return isinstance(L, int) and L == 1


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
        positions: PositionTable,
        fused: bool = False,
    ) -> None:
        """Take a layer of the reference.

        Args:
            types: of the layer.
            reference: its attention.
            u: [H, d_head], shared or the layer's own.
            v: likewise.
            positions: gives terms (b) + (d).
            fused: let one operator do scores, softmax and weighted sum where all are in fp32; it came with version 23
                of ONNX's operators.
        """
        super().__init__()
        self.types = types
        self.scale = reference.d_head**-0.5
        self.content, self.weighted = Product(types, "content"), Product(types, "values")
        self.positions = positions
        parts = {types(name) for name in ("content", "softmax", "values", "positions")}
        self.fused = fused and parts == {torch.float32}
        self.register_buffer("u", cast((u * self.scale)[:, None], self.content.dtype))
        self.register_buffer("v", cast((v * self.scale)[:, None], self.positions.dtype))
        self.W_o = Linear(types, "W_o", reference.W_o)
        self.norm, self.pre_lnorm = Norm(types, reference.norm), reference.pre_lnorm

    def split_heads(self, x: Tensor, parts: int = 1) -> Tensor:
        """[B, L, parts * H * d_head], or [B, ...] of one token -> [B, parts * H, L, d_head]."""
        heads, _, width = self.u.shape
        if x.dim() == 2:
            return x.reshape(-1, parts * heads, 1, width)
        return x.unflatten(-1, (parts * heads, width)).transpose(1, 2)

    def join_heads(self, x: Tensor, like: Tensor) -> Tensor:
        """[B, H, L, d_head] -> [B, L, H * d_head], or [B, H * d_head] where `like` is [B, d_model]."""
        return x.flatten(1) if like.dim() == 2 else x.transpose(1, 2).flatten(2)

    def weigh(self, query: Tensor, key: Tensor, value: Tensor, b_d: Tensor, visible: Tensor) -> Tensor:
        """The weighted sum of values, [B, H, L, d_head], of scores whose terms (b) + (d) are known."""
        query = cast(query, self.u.dtype) + self.u
        if self.fused:
            return F.scaled_dot_product_attention(query, key, value, b_d + visible, scale=1.0)
        a_c = self.content(query, key.transpose(-1, -2))
        score = cast(a_c, visible.dtype) + cast(b_d, visible.dtype)
        return self.weighted((score + visible).softmax(-1), value)

    def forward(self, h: Tensor, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, *place: Tensor) -> Tensor:
        """Residual, attention and LayerNorm.

        Args:
            h: hidden states of the segment, [B, L, d_model]; [B, d_model] of one token, if the layout has them so.
            query: scaled by 1 / sqrt(d_head), [B, H, L, d_head].
            key: [B, H, M + L, d_head], oldest first.
            value: like key.
            visible: which keys each query sees, as a term to add, [B, 1, L, M + L].
            place: what the layout's position table takes besides the query.

        Returns:
            like h.
        """
        b_d = self.positions(cast(query, self.v.dtype) + self.v, *place)
        a = self.join_heads(self.weigh(query, key, value, b_d, visible), h)
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
        """[..., d_model] -> [..., d_model]."""
        x = self.norm(o) if self.pre_lnorm else o
        out = o + cast(self.W_2(self.W_1(x).relu()), o.dtype)
        return out if self.pre_lnorm else cast(self.norm(out), o.dtype)
