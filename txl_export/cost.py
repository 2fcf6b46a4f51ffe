"""What a call costs at least: multiplications and bytes, by arithmetic rather than by a clock.

A call reads L tokens of each of B streams whose memories hold M tokens. Query i of a stream sees
K_i = M + i + 1 keys (i from 0), or the window's where that is shorter. With h = n_head * d_head, the matrix
products of a layer are, for each stream,

    projections   query, key, value and output of the new tokens: L times 4 d_model h
    content       terms (a) + (c) of the score: h times the sum of all K_i
    positions     terms (b) + (d): one row of the table R W_kR per distance. h times the sum of all K_i, each
                  no more than clamp_len + 1, since all farther keys share a row
    values        the weighted sum of values: h times the sum of all K_i
    feed forward  L times 2 d_model d_inner

and outside the layers the embedding's projections, and as much of the softmax layer as the head needs: all
clusters for a distribution, the shortlist for `target` and `top_k` (which of the tails they need depends on the
tokens), nothing for `features`. At "@last" the softmax, and in the last layer all but keys and values, are
needed for one token of each stream. A multiplication with its addition counts as 2 FLOPs; LayerNorms,
softmaxes, biases and residuals are left out, being smaller by a factor of d_model.

Bytes are what must be read at least: every weight once, however many streams share it; the constant position
tables (in place of W_kR) once; each stream's keys and values once. Of embedding tables that the softmax does
not read, only the tokens' rows. All are as large as the precision of their products makes them, float32 unless told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from txl_export.config import ModelConfig
from txl_export.layouts import DEFAULT_LAYOUT, LAYOUTS, layout_of, memory_bytes
from txl_export.number_types import PRECISIONS, itemsize
from txl_export.precision import MEMORY, PrecisionPolicy
from txl_export.weights import count_parameters, table_sizes, weight_shapes

FLOAT = 4  # bytes of a float32
LAYER_BYTES = 15_000  # of an ONNX file beside its weights, per layer: nodes and names

FULL = PrecisionPolicy()
COSTED_LAYOUTS = tuple(reversed(LAYOUTS))


@dataclass(frozen=True)
class CallCost:
    """What a call costs.

    Attributes:
        flops: of the matrix products, by part of the model, of all streams.
        weight_bytes: weights and position tables, each read once.
        memory_bytes: the memory of all streams, read once.
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


def call_cost(
    config: ModelConfig,
    mem_len: int,
    segment_len: int = 1,
    batch_size: int = 1,
    head: str = "log_probs",
    window: int | None = None,
    policy: PrecisionPolicy = FULL,
) -> CallCost:
    """What a call with full memories costs at least, where keys and values are remembered.

    Args:
        config: the architecture.
        mem_len: M.
        segment_len: tokens L per stream.
        batch_size: streams B.
        head: what the call returns, as in `txl_export.heads`.
        window: keys that a query sees at most, as `Dialect.window` gives it; None for all.
        policy: what weights, position tables and memory are stored in.
    """
    c, heads = config, config.n_head * config.d_head
    kind, _, last = head.partition("@")
    keys = [min(mem_len + i + 1, window or mem_len + i + 1) for i in range(segment_len)]
    asked = keys[-1:] if last else keys  # queries that the last layer answers, by the keys that each sees

    def over_layers(of_all: int, of_asked: int) -> int:
        return batch_size * ((c.n_layer - 1) * of_all + of_asked)

    def distances(queries: list[int]) -> int:
        return sum(min(k, c.clamp_len + 1) if c.clamp_len > 0 else k for k in queries)

    content = over_layers(sum(keys), sum(asked)) * heads
    new = batch_size * c.n_layer * segment_len  # tokens whose keys and values are projected, by layer
    answered = over_layers(len(keys), len(asked))
    macs = {
        "embedding": batch_size * segment_len * _embedding_macs(c),
        "projections": 2 * c.d_model * heads * (new + answered),
        "content": content,
        "positions": over_layers(distances(keys), distances(asked)) * heads,
        "values": content,
        "feed_forward": 2 * c.d_model * c.d_inner * answered,
        "softmax": batch_size * len(asked) * _softmax_macs(c, kind),
    }
    flops = {part: 2 * n for part, n in macs.items()}
    rows = heads * position_rows(c, mem_len, segment_len)
    tables = sum(rows * itemsize(policy.dtype(f"layers.{n}.positions")) for n in range(c.n_layer))
    weights = _weight_bytes(c, kind, batch_size * segment_len, policy)
    return CallCost(flops, weights + tables, batch_size * memory_bytes("kv", c, mem_len, policy.dtype(MEMORY)))


def token_cost(config: ModelConfig, mem_len: int, layout: str, rows: int | None = None) -> CallCost:
    """What one token of one stream costs in a graph of a layout, with a full memory and head `log_probs`.

    That is the call with L = B = 1, but for what a layout does beyond the least: `hidden` remembers hidden states,
    and projects all M of them to keys and values again; `ring` reads its whole buffer, whichever rows count.

    Args:
        config: the architecture.
        mem_len: M.
        layout: one of `COSTED_LAYOUTS`.
        rows: of the memory tensors; None for those of an export that is told nothing but M.
    """
    traits, heads = layout_of(layout), config.n_head * config.d_head
    held = traits.usual_rows(mem_len) if rows is None else rows
    more = held - mem_len - 1 if traits.in_place else 0  # keys beside those that count
    cost = call_cost(config, mem_len)
    flops, again = dict(cost.flops), mem_len * traits.projects_again
    flops["projections"] += 4 * config.n_layer * config.d_model * heads * again
    for part in ("content", "values", *["positions"] * (config.clamp_len <= 0)):
        flops[part] += 2 * config.n_layer * heads * more
    table = 0 if 0 < config.clamp_len <= mem_len else FLOAT * config.n_layer * heads * more
    return CallCost(flops, cost.weight_bytes + table, memory_bytes(layout, config, held))


def compared_layouts(own: str) -> tuple[str, str]:
    """The layout of the paper and a bundle's own, or what exports have by default where that is the same."""
    paper = next(name for name, traits in LAYOUTS.items() if traits.projects_again)
    return paper, own if own != paper else DEFAULT_LAYOUT


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


def _embedding_macs(config: ModelConfig) -> int:
    return sum(config.d_model * width for _, width in table_sizes(config)) if config.has_projs else 0


def _clusters_needed(config: ModelConfig, kind: str) -> int:
    """Clusters of the softmax, the shortlist first, that a head cannot do without."""
    return {"features": 0, "target": 1, "top_k": 1}.get(kind, config.n_tails + 1)


def _softmax_macs(config: ModelConfig, kind: str) -> int:
    ends, needed = config.cluster_ends, _clusters_needed(config, kind)
    macs = config.n_tails * config.cluster_width(0) if needed else 0  # the shortlist's entries for the tails
    for i in range(needed):
        width = config.cluster_width(i)
        macs += (ends[i + 1] - ends[i]) * width + (config.d_model * width if config.has_projs else 0)
    return macs


def _weight_bytes(config: ModelConfig, kind: str, tokens: int, policy: PrecisionPolicy) -> int:
    """Of what is read, without position tables and what they replace."""
    shapes, softmax = weight_shapes(config), _softmax_names(config, kind)
    rows = 0 if any(n.startswith("embedding.tables.") for n in softmax) else min(tokens, config.vocab_size)
    looked_up = rows * min(width for _, width in table_sizes(config)) * itemsize(policy.dtype("embedding"))
    read = dict(softmax)
    for name, shape in shapes.items():
        if not name.startswith(("embedding.tables.", "softmax.")) and not name.endswith(".W_kR"):
            read[name] = math.prod(shape)
    return round(looked_up + sum(n * _bytes_each(name, shapes[name], policy) for name, n in read.items()))


def _bytes_each(name: str, shape: tuple[int, ...], policy: PrecisionPolicy) -> float:
    """Bytes of a number of a tensor: as many as its product's precision has, but few bits are for matrices alone."""
    product = _product(name)
    stored = PRECISIONS[policy.of(product)]
    return stored.bytes_per_weight(shape[-1]) if len(shape) > 1 else itemsize(stored.dtype)


def _product(name: str) -> str:
    """The product that takes a tensor: `txl_export.precision` has the names."""
    first, _, rest = name.partition(".")
    last = name.rpartition(".")[2]
    if first != "layers":
        return "logits" if first == "softmax" or ".tables." in name else "embedding" if "." in name else "norm"
    return f"layers.{rest.partition('.')[0]}.{_PRODUCTS[last]}" if last in _PRODUCTS else "norm"


_PRODUCTS = {
    "W_q": "W_qkv", "W_kE": "W_qkv", "W_v": "W_qkv", "u": "content", "v": "positions",
    "W_o": "W_o", "W_1": "W_1", "b_1": "W_1", "W_2": "W_2", "b_2": "W_2",
}  # fmt: skip


def _softmax_names(config: ModelConfig, kind: str) -> dict[str, int]:
    """Tensors that a head's clusters read, and how many numbers of each."""
    needed, shapes = _clusters_needed(config, kind), weight_shapes(config)
    ends, found = config.cluster_ends, dict[str, int]()
    if not needed:
        return found
    tables = "embedding.tables" if config.tie_weight else "softmax.weights"
    for i in range(needed):
        rows = ends[i + 1] - ends[i]
        table = i if config.div_val > 1 else 0
        for name in (f"{tables}.{table}", f"softmax.biases.{table}"):
            found[name] = found.get(name, 0) + rows * math.prod(shapes[name][1:])
        name = f"softmax.projs.{i}"
        found |= {name: math.prod(shapes[name])} if name in shapes else {}
    clusters = ("softmax.cluster_weight", "softmax.cluster_bias")
    return found | {name: math.prod(shapes[name]) for name in clusters if name in shapes}
