"""The reference as a function of tokens and memory tensors: what exporters and compilers are given."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.memory import MadeMemory
from txl_export.checkpoints import load_checkpoint
from txl_export.reference import Memory, TransformerXL
from txl_export.reference.adaptive import AdaptiveEmbedding


class HiddenMemory(nn.Module):
    """One call of the reference with full memories."""

    def __init__(self, checkpoint: Path) -> None:
        """Load a checkpoint's model."""
        super().__init__()
        self.model = TransformerXL.from_checkpoint(load_checkpoint(checkpoint)).eval()
        self.model.embedding = _lookup(self.model.embedding)
        self.eval()

    def forward(self, ids: Tensor, mems: list[Tensor]) -> tuple[Tensor, ...]:
        """int64 [B, L] and per layer [B, M, d_model] -> log-probabilities [B, L, V] and the next memory."""
        B, M = mems[0].shape[:2]
        memory = Memory(tuple(mems), torch.full((B,), M, device=mems[0].device))
        log_probs, new = self.model(ids, memory, M)
        return log_probs, *new.hidden


class _OneTable(AdaptiveEmbedding):
    """An embedding of one table, as a lookup: the reference's masks have shapes that depend on the tokens."""

    def forward(self, ids: Tensor) -> Tensor:
        """[B, L] int64 -> [B, L, d_model]."""
        rows = F.embedding(ids, self.tables[0])
        out = F.linear(rows, self.projs[0]) if self.config.has_projs else rows
        return out * self.config.d_model**0.5


def _lookup(embedding: AdaptiveEmbedding) -> AdaptiveEmbedding:
    if len(embedding.tables) > 1:
        return embedding
    with torch.device("meta"):
        lookup = _OneTable(embedding.config)
    lookup.tables, lookup.projs = embedding.tables, embedding.projs
    return lookup


def made_hidden(memory: MadeMemory) -> list[Tensor]:
    """Per layer the made memory, [B, M, d_model]."""
    layers = range(memory.config.n_layer)
    return [torch.from_numpy(memory.streams(memory.rows(n))) for n in layers]
