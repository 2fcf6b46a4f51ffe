"""Adaptive embedding and adaptive softmax (Baevski & Auli 2019, Grave et al. 2017), as Transformer-XL uses them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_export.config import Dialect, ModelConfig
from txl_export.weights import table_sizes


class AdaptiveEmbedding(nn.Module):
    """Embeds tokens; frequent clusters in wide tables, rare ones in narrow tables with a projection."""

    def __init__(self, config: ModelConfig) -> None:
        """Make one table for all tokens (div_val 1) or one per cluster, and projections where widths differ."""
        super().__init__()
        self.config = config
        sizes = table_sizes(config)
        self.tables = nn.ParameterList(torch.empty(size, width) for size, width in sizes)
        projs = [torch.empty(config.d_model, width) for _, width in sizes] if config.has_projs else []
        self.projs = nn.ParameterList(projs)
        # Boundaries of the tables: one table may hold several clusters.
        self.ends = (0, config.vocab_size) if len(sizes) == 1 else config.cluster_ends

    def forward(self, ids: Tensor) -> Tensor:
        """[B, L] int64 -> [B, L, d_model], scaled by sqrt(d_model)."""
        out = self.tables[0].new_zeros(*ids.shape, self.config.d_model)
        for i, table in enumerate(self.tables):
            mine = (ids >= self.ends[i]) & (ids < self.ends[i + 1])
            rows = F.embedding(ids[mine] - self.ends[i], table)
            out[mine] = F.linear(rows, self.projs[i]) if self.config.has_projs else rows
        return out * self.config.d_model**0.5


class AdaptiveSoftmax(nn.Module):
    """Probabilities of the next token: a shortlist with one entry per tail cluster, then the tails."""

    def __init__(self, config: ModelConfig, dialect: Dialect) -> None:
        """Make the parameters that are not tied to the embedding."""
        super().__init__()
        self.config, self.dialect = config, dialect
        if config.n_tails:
            self.cluster_weight = nn.Parameter(torch.empty(config.n_tails, config.d_embed))
            self.cluster_bias = nn.Parameter(torch.empty(config.n_tails))
        sizes = table_sizes(config)
        own = [] if config.tie_weight else [torch.empty(*size) for size in sizes]
        self.weights = nn.ParameterList(own)
        self.biases = nn.ParameterList(torch.empty(size) for size, _ in sizes)
        self.projs = nn.ParameterDict(
            {
                str(i): torch.empty(config.d_model, config.cluster_width(i))
                for i, tied in enumerate(config.tie_projs)
                if config.has_projs and not tied
            }
        )

    def cluster(self, i: int, embedding: AdaptiveEmbedding) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weight [n_i, width_i], bias [n_i] and projection [d_model, width_i] or None of cluster i.

        Cluster 0 ends with the rows of the tail clusters, in the order of the file.
        """
        weights = embedding.tables if self.config.tie_weight else self.weights
        own_table = len(weights) > 1
        start, end = self.config.cluster_ends[i : i + 2]
        rows = slice(None) if own_table else slice(start, end)
        weight, bias = weights[i if own_table else 0][rows], self.biases[i if own_table else 0][rows]
        if i == 0 and self.config.n_tails:
            weight = torch.cat([weight, self.cluster_weight])
            bias = torch.cat([bias, self.cluster_bias])
        return weight, bias, self._proj(i, embedding)

    def _proj(self, i: int, embedding: AdaptiveEmbedding) -> Tensor | None:
        if not self.config.has_projs:
            return None
        if not self.config.tie_projs[i]:
            return self.projs[str(i)]
        return embedding.projs[i if len(embedding.projs) > 1 else 0]

    def cluster_logits(self, i: int, h: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Logits within cluster i: [..., d_model] -> [..., n_i], for cluster 0 the shortlist and the tails."""
        weight, bias, proj = self.cluster(i, embedding)
        return F.linear(h if proj is None else h @ proj, weight, bias)

    def tail_column(self, tail: int) -> int:
        """Column of cluster 0's logits that stands for tail cluster `tail` (0-based), by the dialect's order."""
        return self.config.cluster_ends[1] + self.dialect.cluster_row(tail, self.config.n_tails)

    def log_probs(self, h: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Natural log-probabilities of all tokens: [..., d_model] -> [..., V]."""
        head = self.cluster_logits(0, h, embedding).log_softmax(-1)
        parts = [head[..., : self.config.cluster_ends[1]]]
        for tail in range(self.config.n_tails):
            column = self.tail_column(tail)
            within = self.cluster_logits(tail + 1, h, embedding).log_softmax(-1)
            parts.append(head[..., column : column + 1] + within)
        return torch.cat(parts, dim=-1)

    def target_log_probs(self, h: Tensor, targets: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Log-probabilities of given tokens only, in token order: [..., d_model], [...] int64 -> [...].

        A tail cluster is computed for the positions whose target lies in it, as in training.
        """
        shape = targets.shape
        h, targets = h.reshape(-1, h.shape[-1]), targets.reshape(-1)
        ends = self.config.cluster_ends
        head = self.cluster_logits(0, h, embedding).log_softmax(-1)
        column = targets.clamp(max=ends[1] - 1)
        out = head.gather(-1, column[:, None])[:, 0]
        for tail in range(self.config.n_tails):
            start, end = ends[tail + 1 : tail + 3]
            (mine,) = torch.where((targets >= start) & (targets < end))
            within = self.cluster_logits(tail + 1, h[mine], embedding).log_softmax(-1)
            value = head[mine, self.tail_column(tail)] + within.gather(-1, targets[mine, None] - start)[:, 0]
            out = out.index_put((mine,), value)
        return out.reshape(shape)
