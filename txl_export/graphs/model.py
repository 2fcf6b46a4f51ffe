"""The three pieces that a graph is traced in: opening, layer and closing (a head).

All layers of a model are one piece of code with different weights, so a layer is traced once per graph and
set in place for each layer (`assembly`): export time does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from txl_export.bundle import Manifest
from txl_export.graphs.heads import Head, logits_of
from txl_export.graphs.layouts import TRACED
from txl_export.graphs.pieces import Attention, FeedForward
from txl_export.graphs.typed import Linear, Types
from txl_export.reference import TransformerXL

ATTENTION_OPSET = 23  # the version of ONNX's operators that brought Attention


class GraphLayer(nn.Module):
    """One layer: the layout's attention, then feed-forward."""

    def __init__(self, types: Types, attention: nn.Module, feed_forward: FeedForward) -> None:
        """Take a layout's attention and a feed-forward layer."""
        super().__init__()
        self.types, self.attention, self.feed_forward = types, attention, feed_forward

    def forward(self, h: Tensor, shared: list[Tensor], state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Hidden states [B, L, d_model], or [B, d_model], and the layer's memory tensors -> those after the layer."""
        h, new_state = self.attention(h, state, shared)
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
        policy, layout = manifest.policy, TRACED[manifest.layout]
        types, fused = Types(policy), manifest.traits.opset >= ATTENTION_OPSET
        self.opening = layout.opening(types, model, manifest)
        self.layers = nn.ModuleList()
        for n, layer in enumerate(model.stack):
            own = Types(policy, n)
            positions = layout.positions(own, layer.attention, manifest)
            attention = Attention(own, layer.attention, *model.biases(n), positions, fused)
            attended = layout.layer(layer.attention, attention)
            self.layers.append(GraphLayer(own, attended, FeedForward(own, layer.feed_forward)))
        logits = logits_of(types, model.softmax, model.embedding)
        heads = {h: Head(h, logits, model.softmax, manifest.top_k) for h in manifest.heads}
        self.heads = nn.ModuleDict(heads)
        for module in self.layers.modules():
            if isinstance(module, Linear):
                module.flat = manifest.traits.in_place
        self.requires_grad_(False).eval()

    def forward(
        self,
        head: str,
        input_ids: Tensor,
        positions: Tensor,
        states: list[list[Tensor]],
        targets: Tensor | None = None,
        places: Sequence[Tensor] = (),
    ) -> tuple[list[Tensor], Tensor, list[list[Tensor]]]:
        """Run one segment eagerly, as the assembled graph does.

        Args:
            head: one of the manifest's.
            input_ids: int64 [B, L].
            positions: position of each stream's first token, int64 [B].
            states: memory tensors of each layer, as the layout has them.
            targets: int64 [B, L] ([B, 1] at "@last") for head `target`.
            places: what the layout takes besides positions (`Layout.inputs`), int64 [B] each.

        Returns:
            outputs of the head, new positions [B], and new states in the order of `states`.
        """
        key = states[0][:1] if places else []
        h, shared, new_positions = self.opening(input_ids, positions, *places, *key)
        new_states = []
        for layer, state in zip(self.layers, states, strict=True):
            h, new = layer(h, shared, state)
            new_states.append(new)
        return self.heads[head](h, targets), new_positions, new_states
