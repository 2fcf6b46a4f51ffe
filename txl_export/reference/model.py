"""Segment recurrence (section 3.2 of the paper): the whole model and the memory it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_export.config import Dialect, ModelConfig
from txl_export.reference.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl_export.reference.attention import RelativeAttention, clamped_distances, sinusoid

if TYPE_CHECKING:
    from txl_export.checkpoints import Checkpoint


@dataclass
class Memory:
    """What earlier segments left behind.

    Attributes:
        hidden: per layer its inputs, [B, n, d_model], oldest first; n grows up to M.
        filled: int64 [B], how many of the newest rows count for each stream; streams that started
            later than others have fewer.
    """

    hidden: tuple[Tensor, ...]
    filled: Tensor

    @property
    def length(self) -> int:
        """Rows n that the tensors hold."""
        return self.hidden[0].shape[1]


class FeedForward(nn.Module):
    """The position-wise feed-forward layer with its residual and LayerNorm."""

    def __init__(self, config: ModelConfig, dialect: Dialect) -> None:
        """Make the parameters W_1, b_1, W_2, b_2."""
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.W_1 = nn.Parameter(torch.empty(config.d_inner, config.d_model))
        self.b_1 = nn.Parameter(torch.empty(config.d_inner))
        self.W_2 = nn.Parameter(torch.empty(config.d_model, config.d_inner))
        self.b_2 = nn.Parameter(torch.empty(config.d_model))
        self.norm = nn.LayerNorm(config.d_model, eps=dialect.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, o: Tensor) -> Tensor:
        """[B, L, d_model] -> [B, L, d_model]."""
        x = self.norm(o) if self.pre_lnorm else o
        inner = self.dropout(F.linear(x, self.W_1, self.b_1).relu())
        out = o + self.dropout(F.linear(inner, self.W_2, self.b_2))
        return out if self.pre_lnorm else self.norm(out)


class Layer(nn.Module):
    """One layer: relative attention, then feed-forward."""

    def __init__(self, config: ModelConfig, dialect: Dialect) -> None:
        """Make both parts."""
        super().__init__()
        self.attention = RelativeAttention(config, dialect)
        self.feed_forward = FeedForward(config, dialect)

    def forward(self, h: Tensor, memory: Tensor, R: Tensor, visible: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """[B, L, d_model] -> [B, L, d_model]; arguments as in `RelativeAttention.forward`."""
        return self.feed_forward(self.attention(h, memory, R, visible, u, v))


class TransformerXL(nn.Module):
    """The language model: embedding, layers with memory, (adaptive) softmax.

    It trains: the gradient stops at the memory. `mem_len` of the configuration is the memory length M
    unless a call says otherwise.
    """

    def __init__(self, config: ModelConfig, dialect: Dialect | None = None) -> None:
        """Make a model with freshly initialised parameters.

        Args:
            config: the architecture.
            dialect: the behaviours of an origin; None for the paper's.
        """
        super().__init__()
        self.config, self.dialect = config, dialect or Dialect()
        if not config.untie_r:
            self.u = nn.Parameter(torch.empty(config.n_head, config.d_head))
            self.v = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.embedding = AdaptiveEmbedding(config)
        self.layers = nn.ModuleList(Layer(config, self.dialect) for _ in range(config.n_layer))
        self.softmax = AdaptiveSoftmax(config, self.dialect)
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initialise as the authors' code does: normal weights, zero biases, LayerNorms at the identity."""
        for name, p in self.named_parameters():
            bias = name.endswith(("bias", "b_1", "b_2")) or ".biases." in name
            if name.endswith("norm.weight"):
                nn.init.ones_(p)
            elif bias:
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.01 if ".projs." in name else std)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> TransformerXL:
        """The checkpoint's model, in float32 and evaluation mode, its weights shared with the checkpoint's."""
        with torch.device("meta"):
            model = cls(checkpoint.config, checkpoint.dialect)
        tensors = {name: torch.from_numpy(w) for name, w in checkpoint.weights.items()}
        model.load_state_dict(tensors, strict=True, assign=True)
        return model.requires_grad_(False).eval()

    @property
    def stack(self) -> list[Layer]:
        """The layers, first to last."""
        return list(self.layers)  # type: ignore[arg-type]

    def biases(self, n: int) -> tuple[nn.Parameter, nn.Parameter]:
        """Terms u and v of layer n, [H, d_head] each: its own, or the pair that all layers share."""
        holder = self.stack[n].attention if self.config.untie_r else self
        return holder.u, holder.v

    def initial_memory(self, batch_size: int, mem_len: int | None = None) -> Memory:
        """The memory of streams that have read nothing: no rows, or M rows of zeros, by the dialect."""
        M = self.config.mem_len if mem_len is None else mem_len
        n = M if self.dialect.initial_memory == "zeros" else 0
        like = self.embedding.tables[0]
        hidden = tuple(like.new_zeros(batch_size, n, self.config.d_model) for _ in range(self.config.n_layer))
        return Memory(hidden, torch.full((batch_size,), n, device=like.device))

    def visible(self, L: int, memory: Memory, mem_len: int) -> Tensor:
        """Which of the n + L keys each query sees: bool [B, 1, L, n + L].

        A query sees itself, what came before it in the segment and the rows of the memory that count;
        with `same_length` only the nearest of them.
        """
        n, device = memory.length, memory.filled.device
        key = torch.arange(n + L, device=device)
        query = torch.arange(n, n + L, device=device)[:, None]
        seen = (key <= query) & (key >= n - memory.filled[:, None, None, None])
        window = self.dialect.window(self.config, mem_len)
        return seen if window is None else seen & (query - key < window)

    def features(self, ids: Tensor, memory: Memory | None = None, mem_len: int | None = None) -> tuple[Tensor, Memory]:
        """Run one segment up to the input of the softmax.

        Args:
            ids: tokens of the segment, int64 [B, L].
            memory: what the segments before it left behind; None at the start of a stream.
            mem_len: memory length M in tokens; None for the configuration's.

        Returns:
            features [B, L, d_model], and the memory for the next segment.
        """
        M = self.config.mem_len if mem_len is None else mem_len
        memory = memory or self.initial_memory(ids.shape[0], M)
        L = ids.shape[1]
        visible = self.visible(L, memory, M)
        like = self.embedding.tables[0]
        distances = clamped_distances(memory.length + L, self.config.clamp_len, like)
        R = self.dropout(sinusoid(distances, self.config.d_model))

        h = self.dropout(self.embedding(ids))
        new_hidden = []
        for n, layer in enumerate(self.stack):
            old = memory.hidden[n]
            new_hidden.append(_newest(torch.cat([old, h.detach()], dim=1), M))  # SG: no gradient through it
            h = layer(h, old, R, visible, *self.biases(n))
        return self.dropout(h), Memory(tuple(new_hidden), (memory.filled + L).clamp(max=M))

    def forward(self, ids: Tensor, memory: Memory | None = None, mem_len: int | None = None) -> tuple[Tensor, Memory]:
        """Run one segment: int64 [B, L] -> natural log-probabilities [B, L, V], and the next memory."""
        h, memory = self.features(ids, memory, mem_len)
        return self.softmax.log_probs(h, self.embedding), memory

    def target_log_probs(
        self, ids: Tensor, targets: Tensor, memory: Memory | None = None, mem_len: int | None = None
    ) -> tuple[Tensor, Memory]:
        """Run one segment for the log-probabilities [B, L] of `targets`, int64 [B, L], as training needs."""
        h, memory = self.features(ids, memory, mem_len)
        return self.softmax.target_log_probs(h, targets, self.embedding), memory


def _newest(rows: Tensor, count: int) -> Tensor:
    """The newest `count` rows of [B, n, d_model], or all where there are fewer."""
    return rows[:, max(0, rows.shape[1] - count) :]
