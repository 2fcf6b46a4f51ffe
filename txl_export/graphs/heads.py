"""Heads: what a graph returns of the input of the softmax layer.

A head's name may end in "@last": then it answers for the last position only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from txl_export.graphs.typed import Linear, Product, Types, cast, in_type
from txl_export.reference.adaptive import AdaptiveEmbedding, AdaptiveSoftmax


class Logits(Product):
    """The product of the softmax layer, cluster by cluster."""

    def __init__(self, types: Types, softmax: AdaptiveSoftmax, embedding: AdaptiveEmbedding) -> None:
        """Take the reference's layers; the embedding may give the weights."""
        super().__init__(types, "logits")
        self.softmax, self.embedding = in_type(softmax, self.dtype), in_type(embedding, self.dtype)
        self.result = types("log_softmax")

    def forward(self, i: int, h: Tensor) -> Tensor:  # type: ignore[override]
        """Logits of cluster i, for cluster 0 of shortlist and tails: [..., d_model] -> [..., n_i]."""
        return cast(self.softmax.cluster_logits(i, cast(h, self.dtype), self.embedding), self.result)


class StoredLogits(Product):
    """The same with weights in a format of few bits: copies, rows that are looked up of a tied table stay exact."""

    def __init__(self, types: Types, softmax: AdaptiveSoftmax, embedding: AdaptiveEmbedding) -> None:
        """Take the reference's layers; the embedding may give the weights."""
        super().__init__(types, "logits")
        self.result = types("log_softmax")
        clusters = [softmax.cluster(i, embedding) for i in range(softmax.config.n_tails + 1)]
        self.clusters = nn.ModuleList(Linear(types, "logits", weight, bias) for weight, bias, _ in clusters)
        self.projs = nn.ModuleList(Linear(types, "logits", proj.T) for *_, proj in clusters if proj is not None)

    def forward(self, i: int, h: Tensor) -> Tensor:  # type: ignore[override]
        """Logits of cluster i, for cluster 0 of shortlist and tails: [..., d_model] -> [..., n_i]."""
        h = cast(h, self.dtype)
        return cast(self.clusters[i](self.projs[i](h) if self.projs else h), self.result)


def logits_of(types: Types, softmax: AdaptiveSoftmax, embedding: AdaptiveEmbedding) -> Product:
    """The product of the softmax layer, with its weights as the policy has them."""
    kind = Logits if types.format("logits") is None else StoredLogits
    return kind(types, softmax, embedding)


class Head(nn.Module):
    """Softmax layer of the reference, asked in one of the ways of `HEADS`."""

    def __init__(self, name: str, logits: Product, softmax: AdaptiveSoftmax, top_k: int) -> None:
        """Take the product of `logits_of` and the layer it is of; `name` is a key of HEADS, with or without "@last"."""
        super().__init__()
        kind, _, where = name.partition("@")
        self.compute, self.last_only = HEADS[kind], where == "last"
        self.logits_of, self.top_k = logits, top_k
        self.ends, self.n_tails, self.tail_column = (
            softmax.config.cluster_ends,
            softmax.config.n_tails,
            softmax.tail_column,
        )

    def forward(self, h: Tensor, targets: Tensor | None) -> list[Tensor]:
        """[B, L, d_model], or [B, d_model] of one token -> the head's outputs, [B, L or 1, ...], numbers in float32."""
        h = h[:, None] if h.dim() == 2 else h
        answers = self.compute(self, h[:, -1:] if self.last_only else h, targets)
        return [cast(a, torch.float32) if a.is_floating_point() else a for a in answers]

    def logits(self, h: Tensor) -> Tensor:
        """Scores of all tokens whose softmax gives the probabilities: [B, L, d_model] -> [B, L, V].

        Without cutoffs the plain logits. With cutoffs a tail's entries are its cluster's logit plus the
        log-probabilities within the cluster.
        """
        return self._with_tails(self.logits_of(0, h), h)

    def log_probs(self, h: Tensor) -> Tensor:
        """Natural log-probabilities of all tokens: [B, L, d_model] -> [B, L, V]."""
        return self._with_tails(self.logits_of(0, h).log_softmax(-1), h)

    def _with_tails(self, first: Tensor, h: Tensor) -> Tensor:
        """`first` [B, L, shortlist + tails], a tail's column replaced by it plus what is within the cluster."""
        parts = [first[..., : self.ends[1]]]
        for tail in range(self.n_tails):
            cluster, within = self._tail(tail, first, h)
            parts.append(cluster + within)
        return torch.cat(parts, dim=-1) if len(parts) > 1 else first

    def _tail(self, tail: int, first: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """A tail's column of `first` [..., 1], and the log-probabilities within the cluster [..., n_i]."""
        column = self.tail_column(tail)
        within = self.logits_of(tail + 1, h).log_softmax(-1)
        return first[..., column : column + 1], within

    def target(self, h: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities of the targets: [B, L, d_model], int64 [B, L] -> [B, L].

        No [B, L, V] is formed: a tail is computed for the positions whose target lies in it.
        """
        x, wanted = h.flatten(0, 1), targets.flatten()
        first = self.logits_of(0, x).log_softmax(-1)
        score = first.gather(-1, wanted.clamp(max=self.ends[1] - 1)[:, None])
        for tail in range(self.n_tails):
            start, end = self.ends[tail + 1 : tail + 3]
            mine = (wanted >= start) & (wanted < end)
            rows = _where(mine)
            cluster, within = self._tail(tail, first.index_select(0, rows), x.index_select(0, rows))
            place = (wanted - start).clamp(0, end - start - 1).index_select(0, rows)
            found = cluster + within.gather(-1, place[:, None])
            # Right whichever rows were computed, as long as no other rows than those of the mask are used.
            score = torch.where(mine[:, None], score.index_copy(0, rows, found), score)
        return score.reshape(targets.shape)

    def best(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The k most probable tokens: [B, L, d_model] -> log-probabilities and int64 tokens, [B, L, k], best first.

        A tail's tokens are at most as probable as the tail: it is computed for the positions where that is more
        than the least of the k best found before it. Of equals it may be others that are left out than in a sort
        of all V.
        """
        x = h.flatten(0, 1)
        first = self.logits_of(0, x).log_softmax(-1)
        scores, tokens = first[:, : self.ends[1]].topk(min(self.top_k, self.ends[1]), dim=-1)
        for tail in range(self.n_tails):
            start, end = self.ends[tail + 1 : tail + 3]
            found, k = scores.shape[-1], min(self.top_k, end - start)
            column = self.tail_column(tail)
            may = first[:, column] > (scores[:, -1] if found == self.top_k else float("-inf"))
            rows = _where(may)
            cluster, within = self._tail(tail, first.index_select(0, rows), x.index_select(0, rows))
            log_probs, places = within.topk(k, dim=-1)
            others = first.new_full((1, k), float("-inf")).expand(x.shape[0], k)
            more = others.index_copy(0, rows, cluster + log_probs)
            named = tokens.new_zeros(1, k).expand(x.shape[0], k).index_copy(0, rows, places + start)
            scores, chosen = torch.cat([scores, more], -1).topk(min(self.top_k, found + k), dim=-1)
            tokens = torch.cat([tokens, named], -1).gather(-1, chosen)
        shape = (*h.shape[:2], self.top_k)
        return scores.reshape(shape), tokens.reshape(shape)


def _where(mask: Tensor) -> Tensor:
    """Numbers of the rows that a mask [n] keeps."""
    return torch.nonzero(mask)[:, 0]


def _log_probs(head: Head, h: Tensor, targets: Tensor | None) -> list[Tensor]:
    return [head.log_probs(h)]


def _logits(head: Head, h: Tensor, targets: Tensor | None) -> list[Tensor]:
    return [head.logits(h)]


def _target(head: Head, h: Tensor, targets: Tensor | None) -> list[Tensor]:
    assert targets is not None
    return [head.target(h, targets)]


def _top_k(head: Head, h: Tensor, targets: Tensor | None) -> list[Tensor]:
    return list(head.best(h))


def _features(head: Head, h: Tensor, targets: Tensor | None) -> list[Tensor]:
    return [h * 1.0]  # a value of its own: an output must not be another output's tensor


# One line per head, in the words of `txl_export.heads`.
HEADS: dict[str, Callable[[Head, Tensor, Tensor | None], list[Tensor]]] = {
    "log_probs": _log_probs,
    "logits": _logits,
    "target": _target,
    "top_k": _top_k,
    "features": _features,
}
