"""The module that is traced: one call of the model with its memory as explicit inputs and outputs."""

from __future__ import annotations

from torch import Tensor, nn

from txl_export.graphs.heads import Head
from txl_export.graphs.layouts import LAYERS
from txl_export.graphs.pieces import Attention, embed, visibility
from txl_export.reference import TransformerXL


class SegmentGraph(nn.Module):
    """One segment in one call, by the graph contract: ids, positions and states in; answer and new states out."""

    def __init__(self, model: TransformerXL, layout: str, mem_len: int, longest: int, head: str, top_k: int) -> None:
        """Rearrange a reference model's weights for a layout and head.

        Args:
            model: the reference, whose tensors are shared where they need no rearranging.
            layout: key of `LAYERS`.
            mem_len: M.
            longest: tokens in the longest segment of the bundle.
            head: key of `HEADS`, optionally with "@last".
            top_k: tokens that head `top_k` returns.
        """
        super().__init__()
        self.mem_len, self.window = mem_len, model.dialect.window(model.config, mem_len)
        self.embedding = model.embedding
        self.layers = nn.ModuleList()
        self.feed_forwards = nn.ModuleList()
        for n, layer in enumerate(model.layers):
            attention = Attention(layer.attention, *model.biases(n), model.config, mem_len, longest)
            self.layers.append(LAYERS[layout](layer.attention, attention))
            self.feed_forwards.append(layer.feed_forward)
        self.head = Head(head, model.softmax, model.embedding, top_k)

    def forward(
        self, input_ids: Tensor, positions: Tensor, states: list[list[Tensor]], targets: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor, list[list[Tensor]]]:
        """Run one segment.

        Args:
            input_ids: int64 [B, L].
            positions: position of each stream's first token, int64 [B].
            states: memory tensors of each layer, as the layout has them.
            targets: int64 [B, L] ([B, 1] at "@last") for head `target`.

        Returns:
            outputs of the head, new positions [B], and new states in the order of `states`.
        """
        L = input_ids.shape[1]
        visible = visibility(positions, L, self.mem_len, self.window)
        h = embed(self.embedding, input_ids)
        new_states = []
        for layer, feed_forward, state in zip(self.layers, self.feed_forwards, states, strict=True):
            h, new = layer(h, state, visible)
            h = feed_forward(h)
            new_states.append(new)
        return self.head(h, targets), positions + L, new_states

