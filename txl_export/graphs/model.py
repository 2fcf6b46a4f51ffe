"""The three pieces that a graph is traced in: opening, layer and closing (a head).

All layers of a model are one piece of code with different weights, so a layer is traced once per graph and
set in place for each layer (`assembly`): export time does not grow with depth.
"""

from __future__ import annotations

from torch import Tensor, nn

from txl_export.bundle import Manifest
from txl_export.graphs.heads import Head, logits_of
from txl_export.graphs.layouts import LAYERS
from txl_export.graphs.pieces import Attention, Embedding, FeedForward, visibility
from txl_export.graphs.typed import Types
from txl_export.reference import TransformerXL
from txl_export.reference.adaptive import AdaptiveEmbedding


class Opening(nn.Module):
    """Everything before the first layer."""

    def __init__(self, types: Types, embedding: AdaptiveEmbedding, mem_len: int, window: int | None) -> None:
        """Take the reference's embedding; `window` is the keys that a query sees, None for all."""
        super().__init__()
        self.embedding, self.mem_len, self.window = Embedding(types, embedding), mem_len, window
        self.scores = types("softmax")

    def forward(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """int64 [B, L] and [B] -> hidden states [B, L, d_model], `visibility` [B, 1, L, M + L], new positions."""
        L = input_ids.shape[1]
        visible = visibility(positions, L, self.mem_len, self.window, self.scores)
        return self.embedding(input_ids), visible, positions + L


class GraphLayer(nn.Module):
    """One layer: the layout's attention, then feed-forward."""

    def __init__(self, types: Types, attention: nn.Module, feed_forward: FeedForward) -> None:
        """Take a layout's attention and a feed-forward layer."""
        super().__init__()
        self.types, self.attention, self.feed_forward = types, attention, feed_forward

    def forward(self, h: Tensor, visible: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Hidden states [B, L, d_model] and the layer's memory tensors -> the same for what comes next."""
        h, new_state = self.attention(h, state, visible)
        return self.feed_forward(h), new_state


class SegmentGraph(nn.Module):
    """One call of the model by the graph contract, from a reference model's weights rearranged for a layout."""

    def __init__(self, model: TransformerXL, manifest: Manifest) -> None:
        """Rearrange the weights; tensors that need no rearranging stay the reference's.

        Args:
            model: the reference.
            manifest: layout, M, the longest segment, heads, and the precision of every product.
        """
        super().__init__()
        config, M, policy = model.config, manifest.mem_len, manifest.policy
        types = Types(policy)
        self.opening = Opening(types, model.embedding, M, model.dialect.window(config, M))
        self.layers = nn.ModuleList()
        for n, layer in enumerate(model.stack):
            own = Types(policy, n)
            attention = Attention(own, layer.attention, *model.biases(n), config, M, manifest.longest)
            layout = LAYERS[manifest.layout](layer.attention, attention)
            self.layers.append(GraphLayer(own, layout, FeedForward(own, layer.feed_forward)))
        logits = logits_of(types, model.softmax, model.embedding)
        heads = {h: Head(h, logits, model.softmax, manifest.top_k) for h in manifest.heads}
        self.heads = nn.ModuleDict(heads)
        self.requires_grad_(False).eval()

    def forward(
        self,
        head: str,
        input_ids: Tensor,
        positions: Tensor,
        states: list[list[Tensor]],
        targets: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor, list[list[Tensor]]]:
        """Run one segment eagerly, as the assembled graph does.

        Args:
            head: one of the manifest's.
            input_ids: int64 [B, L].
            positions: position of each stream's first token, int64 [B].
            states: memory tensors of each layer, as the layout has them.
            targets: int64 [B, L] ([B, 1] at "@last") for head `target`.

        Returns:
            outputs of the head, new positions [B], and new states in the order of `states`.
        """
        h, visible, new_positions = self.opening(input_ids, positions)
        new_states = []
        for layer, state in zip(self.layers, states, strict=True):
            h, new = layer(h, visible, state)
            new_states.append(new)
        return self.heads[head](h, targets), new_positions, new_states
