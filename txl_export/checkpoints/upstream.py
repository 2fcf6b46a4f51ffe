"""Names of tensors in the PyTorch implementations, which all follow kimiyoung's `mem_transformer.py`.

Tensors that a model shares (tied weights and projections, u and v of all layers) may stand in a file under any
of their names, or under several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl_export.checkpoints.pickles import shown
from txl_export.config import ModelConfig
from txl_export.errors import CheckpointError
from txl_export.weights import table_sizes, weight_shapes

# What `qkv_net` holds, one below the other.
_FUSED = ("W_q", "W_kE", "W_v")


@dataclass(frozen=True)
class Naming:
    """Where implementations differ in their names.

    Attributes:
        base: what the body's names start with.
        out_weight: the softmax's weights of table {}.
        out_bias: its biases.
        shared_proj: a second name for the embedding's projection {}; None where there is none.
        omits_tied: whether files leave out the softmax's name of what it shares with the embedding.
    """

    base: str = ""
    out_weight: str = "crit.out_layers.{}.weight"
    out_bias: str = "crit.out_layers.{}.bias"
    shared_proj: str | None = None
    omits_tied: bool = False

    def proj_names(self, i: int) -> list[str]:
        """Names of the embedding's projection `i`, the usual one first."""
        second = [self.shared_proj.format(i)] if self.shared_proj else []
        return [f"{self.base}word_emb.emb_projs.{i}", *second]


def canonical_weights(
    config: ModelConfig, tensors: Mapping[str, np.ndarray], source: Path, naming: Naming
) -> dict[str, np.ndarray]:
    """Rename a file's tensors to the canonical names; every tensor of the file must be accounted for.

    Raises:
        CheckpointError: for missing or unknown tensors, or shared ones whose copies differ.
    """
    rest = dict(tensors)
    weights: dict[str, np.ndarray] = {}
    for name, aliases in _tensor_names(config, naming):
        found = [(a, rest.pop(a)) for a in aliases if a in rest]
        if not found:
            raise CheckpointError(
                f"{source} lacks {aliases[0]}: the file is incomplete or its config names another model"
            )
        first, weights[name] = found[0]
        for alias, copy in found[1:]:
            if not np.array_equal(copy, weights[name]):
                raise CheckpointError(f"{source}: {first} and {alias} differ, but the config shares them")
    for n in range(config.n_layer):
        weights |= _split_qkv(config, rest, source, naming, n)
    _check_frequencies(config, rest.pop(naming.base + "pos_emb.inv_freq", None), source)
    if rest:
        names = ", ".join(shown(name) for name in sorted(rest)[:4])
        raise CheckpointError(f"{source} has unexpected {names}: its config names another model")
    return weights


def file_tensors(config: ModelConfig, weights: Mapping[str, np.ndarray], naming: Naming) -> dict[str, np.ndarray]:
    """The other way round: a model's tensors under a file's names, shared ones once.

    Args:
        config: the architecture.
        weights: canonical names to arrays.
        naming: the target's.
    """
    tensors = {aliases[0]: weights[name] for name, aliases in _tensor_names(config, naming)}
    for n in range(config.n_layer):
        parts = [weights[f"layers.{n}.attention.{letter}"] for letter in _FUSED]
        tensors[_fused_name(naming, n)] = np.concatenate(parts)
    tensors[naming.base + "pos_emb.inv_freq"] = _frequencies(config).astype(np.float32)
    return {name: np.ascontiguousarray(w, dtype=np.float32) for name, w in tensors.items()}


@dataclass(frozen=True)
class Place:
    """What a file's tensor is in the model.

    Attributes:
        shape: its shape in the file.
        parts: canonical names, each with the rows of the file's tensor that it is.
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[str, slice], ...]

    @property
    def first(self) -> str:
        """The canonical name of its first part."""
        return self.parts[0][0]


def tensor_places(config: ModelConfig, naming: Naming) -> dict[str, Place]:
    """Every name that a file may use for a trained tensor, with what it is in the model."""
    shapes, whole = weight_shapes(config), slice(None)
    places = {
        alias: Place(shapes[name], ((name, whole),))
        for name, aliases in _tensor_names(config, naming)
        for alias in aliases
    }
    heads = config.n_head * config.d_head
    for n in range(config.n_layer):
        parts = ((f"layers.{n}.attention.{w}", slice(i * heads, (i + 1) * heads)) for i, w in enumerate(_FUSED))
        places[_fused_name(naming, n)] = Place((len(_FUSED) * heads, config.d_model), tuple(parts))
    return places


def _fused_name(naming: Naming, n: int) -> str:
    return f"{naming.base}layers.{n}.dec_attn.qkv_net.weight"


def _split_qkv(
    config: ModelConfig, rest: dict[str, np.ndarray], source: Path, naming: Naming, n: int
) -> dict[str, np.ndarray]:
    qkv = _fused_name(naming, n)
    fused = rest.pop(qkv, None)
    if fused is None:
        raise CheckpointError(f"{source} lacks {qkv}: the file is incomplete or its config names another model")
    heads = config.n_head * config.d_head
    if fused.shape != (3 * heads, config.d_model):
        raise CheckpointError(
            f"{source}: {qkv} is {list(fused.shape)}, expected {[3 * heads, config.d_model]} from the config"
        )
    parts = enumerate(_FUSED)
    return {f"layers.{n}.attention.{letter}": fused[i * heads : (i + 1) * heads] for i, letter in parts}


def _tensor_names(config: ModelConfig, naming: Naming) -> Iterator[tuple[str, list[str]]]:
    """Canonical name of each tensor but the fused ones, with every name it may have in the file."""
    base = naming.base
    for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
        per_layer = [f"{base}layers.{n}.dec_attn.{theirs}" for n in range(config.n_layer)]
        if config.untie_r:
            yield from ((f"layers.{n}.attention.{ours}", [name]) for n, name in enumerate(per_layer))
        else:
            yield ours, [base + theirs, *per_layer]
    for n in range(config.n_layer):
        attention, ff = f"{base}layers.{n}.dec_attn.", f"{base}layers.{n}.pos_ff."
        yield f"layers.{n}.attention.W_kR", [attention + "r_net.weight"]
        yield f"layers.{n}.attention.W_o", [attention + "o_net.weight"]
        for ours, theirs in (("W_1", "0.weight"), ("b_1", "0.bias"), ("W_2", "3.weight"), ("b_2", "3.bias")):
            yield f"layers.{n}.feed_forward.{ours}", [f"{ff}CoreNet.{theirs}"]
        for part in ("weight", "bias"):
            yield f"layers.{n}.attention.norm.{part}", [f"{attention}layer_norm.{part}"]
            yield f"layers.{n}.feed_forward.norm.{part}", [f"{ff}layer_norm.{part}"]
    yield from _embedding_names(config, naming)
    if config.has_projs:
        yield from _projection_names(config, naming)


def _embedding_names(config: ModelConfig, naming: Naming) -> Iterator[tuple[str, list[str]]]:
    for i in range(len(table_sizes(config))):
        table, out = f"{naming.base}word_emb.emb_layers.{i}.weight", naming.out_weight.format(i)
        yield f"embedding.tables.{i}", [table] + [out] * config.tie_weight
        if not config.tie_weight:
            yield f"softmax.weights.{i}", [out]
        yield f"softmax.biases.{i}", [naming.out_bias.format(i)]
    if config.n_tails:
        yield "softmax.cluster_weight", ["crit.cluster_weight"]
        yield "softmax.cluster_bias", ["crit.cluster_bias"]


def _projection_names(config: ModelConfig, naming: Naming) -> Iterator[tuple[str, list[str]]]:
    for i in range(len(table_sizes(config))):
        tied = [c for c, is_tied in enumerate(config.tie_projs) if is_tied and projection_owner(config.div_val, c) == i]
        yield f"embedding.projs.{i}", [*naming.proj_names(i), *(f"crit.out_projs.{c}" for c in tied)]
    for i, is_tied in enumerate(config.tie_projs):
        if not is_tied:
            yield f"softmax.projs.{i}", [f"crit.out_projs.{i}"]


def projection_owner(div_val: int, cluster: int) -> int:
    """The embedding's projection that a tied cluster uses: with one table for all tokens, the table's."""
    return cluster if div_val > 1 else 0


def _frequencies(config: ModelConfig) -> np.ndarray:
    frequencies: np.ndarray = 1 / 10000 ** (np.arange(0, config.d_model, 2) / config.d_model)
    return frequencies


def _check_frequencies(config: ModelConfig, found: np.ndarray | None, source: Path) -> None:
    """The sinusoid's frequencies are derived, not trained: a file may hold them, but only the usual ones."""
    if found is None:
        return
    usual = _frequencies(config)
    # A model stored in half precision has them rounded too; the exact ones are used all the same.
    with np.errstate(over="ignore"):  # beyond half precision it is none of it
        halved = np.array_equal(found, found.astype(np.float16))
    bfloat16 = not (found.astype(np.float32).view(np.uint32) & 0xFFFF).any()
    tolerance = 8e-3 if bfloat16 else 1e-3 if halved else 1e-4
    if found.shape != usual.shape or not np.allclose(found, usual, rtol=tolerance, atol=0):
        raise CheckpointError(
            f"{source}: pos_emb.inv_freq is not the paper's: this positional encoding is not supported"
        )
