"""The variables of the authors' TensorFlow code: sizes from their shapes, and our names for them.

Source: kimiyoung/transformer-xl, `tf/model.py`. Kernels and projections are stored [in, out], the other way round
than ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.pickles import shown
from txl_export.checkpoints.tensor_bundle import TensorBundle
from txl_export.config import ModelConfig
from txl_export.errors import CheckpointError

SCOPE = "transformer/"
EMBED, SOFTMAX = SCOPE + "adaptive_embed/", SCOPE + "adaptive_softmax/"
_MOST_DIV_VAL = 1024


class Variables:
    """A checkpoint's model variables; what optimizers keep beside them is left out."""

    def __init__(self, bundle: TensorBundle) -> None:
        """Take a checkpoint, of which nothing is read yet."""
        self.source = bundle.index
        names = [n for n in bundle.entries if n.startswith(SCOPE)]
        variables = set(names)
        # Adam keeps NAME/Adam and NAME/Adam_1, others their own names in the same place.
        self._bundle = bundle
        self._left = dict.fromkeys(n for n in names if n.rpartition("/")[0] not in variables)

    def __contains__(self, name: str) -> bool:
        return name in self._bundle.entries

    def shape(self, name: str, *ranks: int) -> tuple[int, ...]:
        """Dimensions of a variable, which must be there and have one of the numbers of dimensions."""
        if name not in self:
            raise CheckpointError(f"{self.source} lacks {name}: it is no Transformer-XL, or incomplete")
        shape = self._bundle.entries[name].shape
        if len(shape) not in ranks or 0 in shape:
            wanted = " or ".join(map(str, ranks))
            raise CheckpointError(f"{self.source}: {name} is {list(shape)}, expected {wanted} dimensions above 0")
        return shape

    def count(self, pattern: str) -> int:
        """How many of the variables `pattern.format(0)`, `pattern.format(1)`, … there are."""
        n = 0
        while pattern.format(n) in self:
            n += 1
        return n

    def take(self, name: str) -> np.ndarray:
        """A variable, which must be there."""
        self.shape(name, 1, 2, 3)
        self._left.pop(name, None)
        return self._bundle.read(name)

    def expect_none_left(self) -> None:
        """Raise CheckpointError for variables that nothing has taken."""
        if self._left:
            listed = ", ".join(shown(n) for n in list(self._left)[:4])
            raise CheckpointError(f"{self.source} has unexpected {listed}: it is of another model than the authors'")


def architecture(variables: Variables) -> dict[str, Any]:
    """The fields of `ModelConfig` that shapes tell; raises CheckpointError for another model's variables."""
    return _sizes(variables) | _vocabulary_sizes(variables)


def canonical_weights(variables: Variables, config: ModelConfig) -> dict[str, np.ndarray]:
    """All variables under the canonical names; raises CheckpointError for missing, unknown or misshaped ones."""
    weights = dict(_weights(variables, config))
    variables.expect_none_left()
    return weights


def _sizes(variables: Variables) -> dict[str, Any]:
    """What layers tell."""
    *layers, n_head, d_head = variables.shape(SCOPE + "r_w_bias", 2, 3)
    variables.shape(SCOPE + "layer_0/rel_attn/qkv/kernel", 2)
    d_model, d_inner = variables.shape(SCOPE + "layer_0/ff/layer_1/kernel", 2)
    return {
        "n_layer": variables.count(SCOPE + "layer_{}/rel_attn/qkv/kernel"),
        "n_head": n_head,
        "d_model": d_model,
        "d_head": d_head,
        "d_inner": d_inner,
        "untie_r": bool(layers),
    }


def _vocabulary_sizes(variables: Variables) -> dict[str, Any]:
    """What embedding and softmax tell."""
    n_clusters = variables.count(SOFTMAX + "cutoff_{}/b")
    if EMBED + "lookup_table" in variables:
        vocab_size, d_embed = variables.shape(EMBED + "lookup_table", 2)
        div_val, sizes = 1, [variables.shape(SOFTMAX + f"cutoff_{i}/b", 1)[0] for i in range(n_clusters)]
    else:
        tables = [variables.shape(EMBED + f"cutoff_{i}/lookup_table", 2) for i in range(max(n_clusters, 1))]
        sizes, widths = [rows for rows, _ in tables], [width for _, width in tables]
        vocab_size, d_embed, div_val = sum(sizes), widths[0], _div_val(widths, variables.source)
    ends = np.cumsum(sizes).tolist()
    return {
        "vocab_size": vocab_size,
        "d_embed": d_embed,
        "div_val": div_val,
        "cutoffs": tuple(ends[:-1]),
        "tie_projs": tuple(SOFTMAX + f"cutoff_{i}/proj" not in variables for i in range(max(n_clusters, 1))),
    }


def _div_val(widths: list[int], source: Path) -> int:
    for div_val in range(2, _MOST_DIV_VAL + 1):
        if all(widths[0] // div_val**i == width for i, width in enumerate(widths)):
            return div_val
    raise CheckpointError(f"{source}: embedding widths {widths} are no division by one div_val")


def _weights(variables: Variables, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Canonical names and tensors."""
    for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
        bias = variables.take(SCOPE + theirs)
        if config.untie_r:
            yield from ((f"layers.{n}.attention.{ours}", row) for n, row in enumerate(bias))
        else:
            yield ours, bias
    for n in range(config.n_layer):
        yield from _layer_weights(variables, f"{SCOPE}layer_{n}/", f"layers.{n}.", config)
    yield from _vocabulary_weights(variables, config)


def _layer_weights(
    variables: Variables, theirs: str, ours: str, config: ModelConfig
) -> Iterator[tuple[str, np.ndarray]]:
    attention, ff, heads = theirs + "rel_attn/", theirs + "ff/", config.n_head * config.d_head
    qkv = _turned(variables.take(attention + "qkv/kernel"))
    if qkv.shape != (3 * heads, config.d_model):
        raise CheckpointError(
            f"{variables.source}: {attention}qkv/kernel is {list(qkv.shape[::-1])}, expected "
            f"{[config.d_model, 3 * heads]} from the other tensors"
        )
    for part, letter in enumerate(("W_q", "W_kE", "W_v")):
        yield f"{ours}attention.{letter}", qkv[part * heads : (part + 1) * heads]
    yield ours + "attention.W_kR", _turned(variables.take(attention + "r/kernel"))
    yield ours + "attention.W_o", _turned(variables.take(attention + "o/kernel"))
    for i in (1, 2):
        yield f"{ours}feed_forward.W_{i}", _turned(variables.take(f"{ff}layer_{i}/kernel"))
        yield f"{ours}feed_forward.b_{i}", variables.take(f"{ff}layer_{i}/bias")
    for name, scope in (("attention", attention), ("feed_forward", ff)):
        yield f"{ours}{name}.norm.weight", variables.take(scope + "LayerNorm/gamma")
        yield f"{ours}{name}.norm.bias", variables.take(scope + "LayerNorm/beta")


def _turned(kernel: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(kernel.T)


def _vocabulary_weights(variables: Variables, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    n_clusters = config.n_tails + 1
    one_table = config.div_val == 1
    scopes = [EMBED] if one_table else [EMBED + f"cutoff_{i}/" for i in range(n_clusters)]
    for i, scope in enumerate(scopes):
        yield f"embedding.tables.{i}", variables.take(scope + "lookup_table")
        if config.has_projs:
            yield f"embedding.projs.{i}", _projection(variables, scope + "proj_W", config)
    biases = [variables.take(SOFTMAX + f"cutoff_{i}/b") for i in range(n_clusters) if config.n_tails]
    if not config.n_tails:
        yield "softmax.biases.0", variables.take(SOFTMAX + "bias")
    elif one_table:
        yield "softmax.biases.0", np.concatenate(biases)
    else:
        yield from ((f"softmax.biases.{i}", bias) for i, bias in enumerate(biases))
    if config.n_tails:
        yield "softmax.cluster_weight", variables.take(SOFTMAX + "cutoff_0/cluster_W")
        yield "softmax.cluster_bias", variables.take(SOFTMAX + "cutoff_0/cluster_b")
    for i, tied in enumerate(config.tie_projs):
        if config.has_projs and not tied:
            yield f"softmax.projs.{i}", _projection(variables, SOFTMAX + f"cutoff_{i}/proj", config)


def _projection(variables: Variables, name: str, config: ModelConfig) -> np.ndarray:
    """A projection [d_model, width]; with `proj_same_dim` off the first is absent where widths are equal."""
    if name not in variables and config.d_embed == config.d_model and "cutoff_0/" in name:
        return np.eye(config.d_model, dtype=np.float32)
    return _turned(variables.take(name))
