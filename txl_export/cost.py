"""What one token costs: multiplications and bytes, by arithmetic rather than by a clock.

Counted is one token of one stream (B = 1, L = 1) with a full memory of M tokens, in an exported float32
graph with head `log_probs`. With K = M + 1 keys and h = n_head * d_head, the matrix products of a layer are

    projections   query, key, value of the new token and the output: 4 d_model h. Layout `hidden` projects
                  keys and values of all K rows again: 2 d_model h + 2 K d_model h
    content       terms (a) + (c) of the score: K h
    positions     terms (b) + (d): one row of the table R W_kR per distance. K h, or (clamp_len + 1) h where
                  clamp_len <= M, since all farther keys share a row
    values        the weighted sum of values: K h
    feed forward  2 d_model d_inner

and outside the layers the embedding's projections, and the softmax layer with all of its clusters (the whole
distribution is asked for). A multiplication with its addition counts as 2 FLOPs; LayerNorms, softmaxes, biases
and residuals are left out, being smaller by a factor of d_model.

Bytes are what must be read at least: every weight once, the constant position tables (in place of W_kR), the
memory once. Of embedding tables that the softmax does not share only a row each is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from txl_export.config import ModelConfig
from txl_export.layouts import memory_bytes
from txl_export.weights import count_parameters, table_sizes, weight_shapes

FLOAT = 4  # bytes of a float32
LAYER_BYTES = 15_000  # of an ONNX file beside its weights, per layer: nodes and names

# Whether a layout projects the remembered rows to keys and values again at each token.
_PROJECTS_MEMORY = {"hidden": True, "kv": False}
COSTED_LAYOUTS = tuple(_PROJECTS_MEMORY)


@dataclass(frozen=True)
class TokenCost:
    """What one token costs.

    Attributes:
        flops: of the matrix products, by part of the model.
        weight_bytes: weights and position tables, each read once.
        memory_bytes: the memory of one stream, read once.
    """

    flops: dict[str, int]
    weight_bytes: int
    memory_bytes: int

    @property
    def total_flops(self) -> int:
        """FLOPs of all parts."""
        return sum(self.flops.values())

    @property
    def bytes_read(self) -> int:
        """Weights and memory."""
        return self.weight_bytes + self.memory_bytes


def token_cost(config: ModelConfig, mem_len: int, layout: str) -> TokenCost:
    """What one token costs with a full memory.

    Args:
        config: the architecture.
        mem_len: M.
        layout: one of `COSTED_LAYOUTS`.
    """
    c, K = config, mem_len + 1  # noqa: N806 - as in the module's text
    heads = c.n_head * c.d_head
    projected = K if _PROJECTS_MEMORY[layout] else 1
    macs = {
        "embedding": sum(c.d_model * width for _, width in table_sizes(c)) if c.has_projs else 0,
        "projections": c.n_layer * 2 * c.d_model * heads * (1 + projected),
        "content": c.n_layer * K * heads,
        "positions": c.n_layer * position_rows(c, mem_len) * heads,
        "values": c.n_layer * K * heads,
        "feed_forward": c.n_layer * 2 * c.d_model * c.d_inner,
        "softmax": _softmax_macs(c),
    }
    flops = {part: 2 * n for part, n in macs.items()}
    return TokenCost(flops, FLOAT * _weights_read(c, mem_len), memory_bytes(layout, c, mem_len))


def position_rows(config: ModelConfig, mem_len: int, longest: int = 1) -> int:
    """Rows of a layer's position table: one per distance 0 ... M + L - 1, none above a `clamp_len` of up to M."""
    compact = 0 < config.clamp_len <= mem_len
    return config.clamp_len + 1 if compact else mem_len + longest


def body_parameters(config: ModelConfig) -> int:
    """Trained numbers of the layers, without embedding and softmax."""
    outside = ("embedding.", "softmax.")
    return sum(math.prod(s) for n, s in weight_shapes(config).items() if not n.startswith(outside))


def export_bytes(config: ModelConfig, mem_len: int, longest: int, graphs: int) -> int:
    """About how large a bundle gets: the weights with position tables in place of W_kR, and the graphs."""
    heads = config.n_head * config.d_head
    tables = config.n_layer * heads * (position_rows(config, mem_len, longest) - config.d_model)
    return FLOAT * (count_parameters(config) + tables) + LAYER_BYTES * config.n_layer * graphs


def _softmax_macs(config: ModelConfig) -> int:
    ends = config.cluster_ends
    macs = config.n_tails * config.cluster_width(0)  # the shortlist's entries for the tails
    for i in range(len(ends) - 1):
        width = config.cluster_width(i)
        macs += (ends[i + 1] - ends[i]) * width + (config.d_model * width if config.has_projs else 0)
    return macs


def _weights_read(config: ModelConfig, mem_len: int) -> int:
    heads = config.n_head * config.d_head
    total = config.n_layer * heads * position_rows(config, mem_len)
    for name, shape in weight_shapes(config).items():
        if name.endswith(".W_kR"):
            continue
        row_only = name.startswith("embedding.tables.") and not config.tie_weight
        total += shape[1] if row_only else math.prod(shape)
    return total
