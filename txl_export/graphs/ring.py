"""Layout `ring`: keys and values stay where they were written, and a row's age says whether and how it is seen.

Position p of a stream is written to slot p mod S of its buffer, S + G rows of which the last G are the guard. Which
position a slot holds follows from the stream's own position and the length of the call alone:

    start = position mod S                                 where the call's rows are written to
    end = start + L
    age of slot s = start - s          for s < end         position of the call's first token - position in the slot
                    start - s + S      for s >= end        older by one round

so query i of the call stands at a distance of i + age. The visibility rule does the rest (`design`: one rule for all
dialects): a row that a call wrote ahead of its stream's position, or that an earlier round left, is not seen. Rows in
the guard are seen by the padding that this call wrote there, and by no token: a query that saw no row at all, as
padding behind a short window would, had no softmax, and what it writes would be no number for a long time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from txl_export.bundle import Manifest
from txl_export.graphs.pieces import Attention, Embedding, PositionTable, one_token
from txl_export.graphs.typed import Linear, Types, cast
from txl_export.precision import MEMORY
from txl_export.reference import TransformerXL
from txl_export.reference.attention import RelativeAttention


def write_rows(memory: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
    """Memory with new rows, each stream's from its own slot on; in a graph, a TensorScatter of the memory itself.

    Args:
        memory: [B, H, S + G, d_head].
        rows: [B, H, L, d_head].
        slots: where each stream's first row goes, int64 [B].
    """
    if torch.onnx.is_in_onnx_export():
        found: Tensor = torch.onnx.ops.symbolic(
            "::TensorScatter",
            [memory, rows, slots],
            {"axis": -2, "mode": "linear"},
            dtype=memory.dtype,
            shape=memory.shape,
            version=24,
        )
        return found
    index = slots[:, None, None, None] + torch.arange(rows.shape[2])[:, None]
    return memory.scatter(2, index.expand_as(rows), rows)


class RingOpening(nn.Module):
    """Everything before the first layer: embedding, and what the rows of the buffers are to each query."""

    def __init__(self, types: Types, model: TransformerXL, manifest: Manifest) -> None:
        """Take the reference's embedding and the bundle's lengths."""
        super().__init__()
        self.embedding, self.n_head = Embedding(types, model.embedding), model.config.n_head
        self.guard, self.scores = manifest.guard, types("softmax")
        self.table_rows, self.ring = table_rows(manifest), manifest.ring

    def forward(
        self, input_ids: Tensor, positions: Tensor, visible_from: Tensor, window: Tensor, key: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Hidden states, what all layers share, and new positions.

        Args:
            input_ids: int64 [B, L].
            positions: position of each stream's first token, int64 [B].
            visible_from: the lowest position that each stream's queries see, int64 [B].
            window: keys that a query sees at most, itself included, int64 [B].
            key: a memory tensor, for its number of rows, [B, H, S + G, d_head].

        Returns:
            [B, L, d_model], or [B, d_model] where L is 1; a term to add to scores, [B, 1, L, S + G]: 0 where
            visible, else -inf; the column that holds each score, of a position table cut to S, int64
            [B, H, L, S + G]; slots to write to, int64 [B]; and positions after the call.
        """
        L, rows = input_ids.shape[1], key.shape[2]
        S = torch.full((1,), rows - self.guard)  # the tracer takes no remainder of a size that is not fixed
        slots = torch.remainder(positions, S)
        row = torch.arange(rows)
        start = slots[:, None]
        end = start + L
        age = start - row + torch.where(row < end, 0, S)  # [B, S + G]
        seen = (age <= (positions - visible_from)[:, None]) & (row < torch.maximum(end, S))
        if one_token(L):  # a slot is never newer than the only query
            distance = age[:, None]  # [B, L, S + G]
            seen = (seen & (age < window[:, None]))[:, None]
        else:
            distance = torch.arange(L)[:, None] + age[:, None]
            seen = seen[:, None] & (distance >= 0) & (distance < window[:, None, None])
        zero, unseen = (torch.tensor(x, dtype=self.scores) for x in (0.0, float("-inf")))
        visible = torch.where(seen, zero, unseen)[:, None]
        cut = cuts_table(L, self.table_rows, self.ring)
        farthest = (torch.sym_min(self.table_rows, rows - self.guard) if cut else self.table_rows) - 1
        column = (farthest - distance).clamp(0, farthest)[:, None].expand(-1, self.n_head, -1, -1)
        h = self.embedding(input_ids)
        return h[:, 0] if one_token(L) else h, [visible, column, slots], positions + L


def table_rows(manifest: Manifest) -> int:
    """Rows of a position table: one per distance that a ring of the largest S holds, none above `clamp_len`."""
    clamp_len = manifest.config.clamp_len
    return min(clamp_len + 1, manifest.ring) if clamp_len > 0 else manifest.ring


def cuts_table(L: int | torch.SymInt, rows: int, ring: int) -> bool:
    """Whether a graph cuts its position tables to what a session's S can hold, for sessions of shorter memories.

    Runtimes do it once, at loading, into a copy for each graph. A table of few clamped distances is worth it only
    where calls are so short that reading all of it would show.
    """
    return rows == ring or one_token(L)


class RingPositionTable(PositionTable):
    """Terms (b) + (d) in the order of slots."""

    def __init__(self, types: Types, reference: RelativeAttention, manifest: Manifest) -> None:
        """Compute the table, as `PositionTable` has it."""
        super().__init__(types, reference, manifest.config, table_rows(manifest))
        self.guard, self.ring = manifest.guard, manifest.ring

    def forward(self, query: Tensor, column: Tensor) -> Tensor:
        """(b) + (d) of each slot: query + v, scaled, [B, H, L, d_head], and columns -> [B, H, L, S + G]."""
        table, rows = self.table, self.table.shape[-1]
        if cuts_table(query.shape[2], rows, self.ring):  # the nearer distances stand last
            table = table[..., torch.sym_max(rows - (column.shape[-1] - self.guard), 0) :]
        return (cast(query, self.dtype) @ table).gather(3, column)


class RingLayer(nn.Module):
    """The attention of layout `ring`: only the call's tokens are projected and written, no row moves."""

    def __init__(self, reference: RelativeAttention, attention: Attention) -> None:
        """Take a layer of the reference and its shared attention; the three projections become one product."""
        super().__init__()
        self.attention = a = attention
        weights = [reference.W_q * a.scale, reference.W_kE, reference.W_v]
        self.W_qkv = Linear(a.types, "W_qkv", torch.cat(weights))
        self.memory = a.types(MEMORY)

    def forward(self, h: Tensor, state: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Attend to the buffer.

        Args:
            h: [B, L, d_model], or [B, d_model] of one token.
            state: key and value, [B, H, S + G, d_head] each.
            shared: what the opening gives.

        Returns:
            output like h, and the state.
        """
        a, (visible, column, slots) = self.attention, shared
        x = a.norm(h) if a.pre_lnorm else h
        query, *new = a.split_heads(self.W_qkv(x), 3).chunk(3, dim=1)
        key, value = (write_rows(m, cast(n, self.memory), slots) for m, n in zip(state, new, strict=True))
        return a(h, query, key, value, visible, column), [key, value]
