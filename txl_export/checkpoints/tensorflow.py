"""Origin `tensorflow`: checkpoints of the authors' TensorFlow 1 code, read without TensorFlow.

Source of names and rules: kimiyoung/transformer-xl, `tf/model.py` and `tf/train_gpu.py`. A checkpoint holds
variables and no configuration: the architecture follows from their shapes, and the evaluation values come from a
`config.json` beside it (its keys as keras-transformer-xl writes them) or are the training script's own defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.tensor_bundle import INDEX, TensorBundle
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import CheckpointError
from txl_export.files import read_json

SCOPE = "transformer/"
EMBED, SOFTMAX = SCOPE + "adaptive_embed/", SCOPE + "adaptive_softmax/"
# `_create_mask` lets a query see mem_len keys besides itself; memories start as zeros of the full length;
# `tf.contrib.layers.layer_norm` has this epsilon.
DIALECT = Dialect(initial_memory="zeros", window_extra=1, cluster_order="forward", layer_norm_eps=1e-12)
# Flags of `tf/train_gpu.py`, where no file beside the checkpoint says otherwise.
DEFAULTS: dict[str, Any] = {"mem_len": 70, "clamp_len": -1, "same_length": False}
_CONFIG_FILE, _CORPUS_FILE = "config.json", "corpus-info.json"
_MOST_DIV_VAL = 1024
# Of the files that make a checkpoint; any of them names it.
_FILE_ENDS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def detect(path: Path) -> str | None:
    """Why `path` is of this origin, or None when it is not: a folder, one of its files, or their common PREFIX."""
    found = _indexes(path)
    return f"{found[0].name} is the index of a TensorFlow checkpoint" if found else None


def names_files(path: Path) -> bool:
    """Whether a path that is no file is the common beginning of a checkpoint's files, as TensorFlow's users name it."""
    return not path.exists() and bool(_indexes(path))


def load(path: Path, _given: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read a checkpoint; raises CheckpointError or ConfigError."""
    index = _chosen(path)
    prefix = index.with_name(index.name.removesuffix(INDEX))
    tensors = _Tensors(TensorBundle(prefix))
    config, assumed = _config(tensors, prefix.parent)
    weights = dict(_weights(tensors, config))
    tensors.expect_none_left()
    where = path if path.exists() else index
    return Checkpoint(config, DIALECT, weights, origin="tensorflow", path=where, assumed=assumed)


def _indexes(path: Path) -> list[Path]:
    """Index files that a path means, the one that the folder's `checkpoint` names first."""
    if not path.is_dir():
        prefix = _FILE_ENDS.sub("", path.name)
        named = path.with_name(prefix + INDEX) if prefix else path
        return [named] if prefix and named.is_file() else []
    state = path / "checkpoint"
    latest = _latest(state) if state.is_file() else None
    found = sorted(p for p in path.glob(f"*{INDEX}") if p.is_file())
    return sorted(found, key=lambda p: p.name != latest)


def _latest(state: Path) -> str | None:
    """Index file of the newest checkpoint, from the text file that TensorFlow keeps beside them."""
    text = state.read_bytes()[: 1 << 16].decode(errors="replace")
    named = re.search(r'^model_checkpoint_path: "([^"\n]*)"', text, re.MULTILINE)
    return re.split(r"[/\\]", named[1])[-1] + INDEX if named else None


def _chosen(path: Path) -> Path:
    found = _indexes(path)
    if not found:
        raise CheckpointError(f"{path} is no TensorFlow checkpoint: it has no file that ends in {INDEX}")
    state = path / "checkpoint"
    if len(found) > 1 and not (state.is_file() and found[0].name == _latest(state)):
        raise CheckpointError(f"{path} holds {len(found)} checkpoints: name one of them, such as {found[-1]}")
    return found[0]


class _Tensors:
    """A checkpoint's model variables; what optimizers keep beside them is left out."""

    def __init__(self, bundle: TensorBundle) -> None:
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
            listed = ", ".join(list(self._left)[:4])
            raise CheckpointError(f"{self.source} has unexpected {listed}: it is of another model than the authors'")


def _config(tensors: _Tensors, folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The architecture, and those evaluation values that no file holds."""
    values = _sizes(tensors) | _vocabulary_sizes(tensors)
    beside = _read_beside(folder)
    for name, found in values.items():
        if name in beside and _plain(beside[name]) != _plain(found):
            raise CheckpointError(
                f"{folder / _CONFIG_FILE} says {name} {beside[name]!r}, the tensors {_plain(found)!r}: it is another "
                "model's; move it away"
            )
    stored = {name: beside[name] for name in DEFAULTS if name in beside}
    assumed = {name: value for name, value in DEFAULTS.items() if name not in stored}
    return ModelConfig(**values, **stored, **assumed), assumed


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read_beside(folder: Path) -> dict[str, Any]:
    """Configuration values of the files beside a checkpoint, under our names; test values go before training's."""
    values: dict[str, Any] = {}
    for file in (folder / _CORPUS_FILE, folder / _CONFIG_FILE):
        found = read_json(file, CheckpointError) if file.is_file() else {}
        values |= found if isinstance(found, dict) else {}
    values |= {name: values[f"test_{name}"] for name in DEFAULTS if f"test_{name}" in values}
    ends = values.get("cutoffs")
    if isinstance(ends, list) and ends[:1] == [0]:  # upstream's list holds both ends
        values["cutoffs"] = ends[1:-1]
    return values


def _sizes(tensors: _Tensors) -> dict[str, Any]:
    """What layers tell."""
    *layers, n_head, d_head = tensors.shape(SCOPE + "r_w_bias", 2, 3)
    tensors.shape(SCOPE + "layer_0/rel_attn/qkv/kernel", 2)
    d_model, d_inner = tensors.shape(SCOPE + "layer_0/ff/layer_1/kernel", 2)
    return {
        "n_layer": tensors.count(SCOPE + "layer_{}/rel_attn/qkv/kernel"),
        "n_head": n_head,
        "d_model": d_model,
        "d_head": d_head,
        "d_inner": d_inner,
        "untie_r": bool(layers),
    }


def _vocabulary_sizes(tensors: _Tensors) -> dict[str, Any]:
    """What embedding and softmax tell."""
    n_clusters = tensors.count(SOFTMAX + "cutoff_{}/b")
    if EMBED + "lookup_table" in tensors:
        vocab_size, d_embed = tensors.shape(EMBED + "lookup_table", 2)
        div_val, sizes = 1, [tensors.shape(SOFTMAX + f"cutoff_{i}/b", 1)[0] for i in range(n_clusters)]
    else:
        tables = [tensors.shape(EMBED + f"cutoff_{i}/lookup_table", 2) for i in range(max(n_clusters, 1))]
        sizes, widths = [rows for rows, _ in tables], [width for _, width in tables]
        vocab_size, d_embed, div_val = sum(sizes), widths[0], _div_val(widths, tensors.source)
    ends = np.cumsum(sizes).tolist()
    return {
        "vocab_size": vocab_size,
        "d_embed": d_embed,
        "div_val": div_val,
        "cutoffs": tuple(ends[:-1]),
        "tie_projs": tuple(SOFTMAX + f"cutoff_{i}/proj" not in tensors for i in range(max(n_clusters, 1))),
    }


def _div_val(widths: list[int], source: Path) -> int:
    for div_val in range(2, _MOST_DIV_VAL + 1):
        if all(widths[0] // div_val**i == width for i, width in enumerate(widths)):
            return div_val
    raise CheckpointError(f"{source}: embedding widths {widths} are no division by one div_val")


def _weights(tensors: _Tensors, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Canonical names and tensors; kernels and projections are stored [in, out], the other way round than ours."""
    for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias")):
        bias = tensors.take(SCOPE + theirs)
        if config.untie_r:
            yield from ((f"layers.{n}.attention.{ours}", row) for n, row in enumerate(bias))
        else:
            yield ours, bias
    for n in range(config.n_layer):
        yield from _layer_weights(tensors, f"{SCOPE}layer_{n}/", f"layers.{n}.", config)
    yield from _vocabulary_weights(tensors, config)


def _layer_weights(tensors: _Tensors, theirs: str, ours: str, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    attention, ff, heads = theirs + "rel_attn/", theirs + "ff/", config.n_head * config.d_head
    qkv = _turned(tensors.take(attention + "qkv/kernel"))
    if qkv.shape != (3 * heads, config.d_model):
        raise CheckpointError(
            f"{tensors.source}: {attention}qkv/kernel is {list(qkv.shape[::-1])}, expected "
            f"{[config.d_model, 3 * heads]} from the other tensors"
        )
    for part, letter in enumerate(("W_q", "W_kE", "W_v")):
        yield f"{ours}attention.{letter}", qkv[part * heads : (part + 1) * heads]
    yield ours + "attention.W_kR", _turned(tensors.take(attention + "r/kernel"))
    yield ours + "attention.W_o", _turned(tensors.take(attention + "o/kernel"))
    for i in (1, 2):
        yield f"{ours}feed_forward.W_{i}", _turned(tensors.take(f"{ff}layer_{i}/kernel"))
        yield f"{ours}feed_forward.b_{i}", tensors.take(f"{ff}layer_{i}/bias")
    for name, scope in (("attention", attention), ("feed_forward", ff)):
        yield f"{ours}{name}.norm.weight", tensors.take(scope + "LayerNorm/gamma")
        yield f"{ours}{name}.norm.bias", tensors.take(scope + "LayerNorm/beta")


def _turned(kernel: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(kernel.T)


def _vocabulary_weights(tensors: _Tensors, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    n_clusters = config.n_tails + 1
    one_table = config.div_val == 1
    scopes = [EMBED] if one_table else [EMBED + f"cutoff_{i}/" for i in range(n_clusters)]
    for i, scope in enumerate(scopes):
        yield f"embedding.tables.{i}", tensors.take(scope + "lookup_table")
        if config.has_projs:
            yield f"embedding.projs.{i}", _projection(tensors, scope + "proj_W", config)
    biases = [tensors.take(SOFTMAX + f"cutoff_{i}/b") for i in range(n_clusters) if config.n_tails]
    if not config.n_tails:
        yield "softmax.biases.0", tensors.take(SOFTMAX + "bias")
    elif one_table:
        yield "softmax.biases.0", np.concatenate(biases)
    else:
        yield from ((f"softmax.biases.{i}", bias) for i, bias in enumerate(biases))
    if config.n_tails:
        yield "softmax.cluster_weight", tensors.take(SOFTMAX + "cutoff_0/cluster_W")
        yield "softmax.cluster_bias", tensors.take(SOFTMAX + "cutoff_0/cluster_b")
    for i, tied in enumerate(config.tie_projs):
        if config.has_projs and not tied:
            yield f"softmax.projs.{i}", _projection(tensors, SOFTMAX + f"cutoff_{i}/proj", config)


def _projection(tensors: _Tensors, name: str, config: ModelConfig) -> np.ndarray:
    """A projection [d_model, width]; with `proj_same_dim` off the first is absent where widths are equal."""
    if name not in tensors and config.d_embed == config.d_model and "cutoff_0/" in name:
        return np.eye(config.d_model, dtype=np.float32)
    return _turned(tensors.take(name))
