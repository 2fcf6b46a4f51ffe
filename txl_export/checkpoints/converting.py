"""From any checkpoint to another origin's files, without loss: what was written is read back and compared."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints import huggingface, load_checkpoint, native
from txl_export.checkpoints.base import Checkpoint
from txl_export.checkpoints.tensors import write_safetensors
from txl_export.checkpoints.upstream import file_tensors
from txl_export.checkpoints.vocabularies import TOKENIZER_CONFIG, as_huggingface
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import ExportError, InputError
from txl_export.files import replacing_folder, require_space, write_atomic, write_json
from txl_export.vocabulary import SymbolVocabulary
from txl_export.vocabulary._moses import PRETOKENIZED
from txl_export.vocabulary._units import MOSES

_CLUSTER_TENSORS = ("softmax.cluster_weight", "softmax.cluster_bias")
Writer = Callable[[Path, Checkpoint], object]


def convert(checkpoint: Checkpoint, out_dir: str | Path, to: str = "native") -> Checkpoint:
    """Write a checkpoint as another origin's.

    The rows of the tail clusters are put in the order that the target expects. What was written is loaded and
    compared, tensor by tensor, before it takes its place.

    Args:
        checkpoint: a loaded checkpoint, with any overrides.
        out_dir: the folder to write, which must be new or empty.
        to: "native" or "huggingface".

    Returns:
        What `load_checkpoint` gives of the folder, with the notes of the source, and on what the target cannot say.

    Raises:
        InputError: an unknown target.
        ExportError: the folder holds something, the target cannot hold the model, or what is read back differs.
        EnvironmentMismatch: not enough disk space; nothing is left behind.
    """
    if to not in TARGETS:
        raise InputError(f"target {to!r} is unknown: use one of {', '.join(TARGETS)}")
    out = Path(out_dir)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} is there and not empty: choose a new or empty folder")
    require_space(out, sum(w.nbytes for w in checkpoint.weights.values()) + 1_000_000)
    expected, notes, write = TARGETS[to](checkpoint)
    with replacing_folder(out) as work:
        write(work, expected)
        found = load_checkpoint(work, to)
        _compare(found, expected)
    return dataclasses.replace(found, path=out, notes=(*checkpoint.notes, *notes))


Plan = tuple[Checkpoint, tuple[str, ...], Writer]


def _as_native(checkpoint: Checkpoint) -> Plan:
    """As it is: `native` stores the dialect."""
    return checkpoint, (), native.save


def _as_huggingface(checkpoint: Checkpoint) -> Plan:
    config, dialect = checkpoint.config, checkpoint.dialect
    if config.same_length and dialect.window_extra:
        raise ExportError(
            "with same_length a query of this model sees mem_len + 1 keys, in Hugging Face's code mem_len: give "
            "--set window_extra=0 to accept other numbers, or --no-same-length"
        )
    target = Dialect("zeros", 0, "forward", dialect.layer_norm_eps)
    weights = dict(checkpoint.weights)
    if dialect.cluster_order != target.cluster_order:
        weights |= {n: np.ascontiguousarray(weights[n][::-1]) for n in _CLUSTER_TENSORS if n in weights}
    words = _words(checkpoint)
    vocab = None if words is None else as_huggingface(words, words.lower_case)
    expected = dataclasses.replace(checkpoint, weights=weights, dialect=target, vocab=vocab)
    return expected, _huggingface_notes(checkpoint), _write_huggingface


def _words(checkpoint: Checkpoint) -> SymbolVocabulary | None:
    """The vocabulary, where it is one of words: all that Hugging Face's tokenizer knows."""
    vocab = checkpoint.vocab
    return vocab if isinstance(vocab, SymbolVocabulary) and vocab.kind in ("words", MOSES) else None


def _huggingface_notes(checkpoint: Checkpoint) -> tuple[str, ...]:
    notes = []
    if checkpoint.dialect.initial_memory == "empty" and checkpoint.config.mem_len:
        notes.append(
            "Hugging Face's code starts from zeros that are attended to, this model from nothing: the first tokens of "
            "a stream get other probabilities, up to n_layer memory lengths of them"
        )
    words = _words(checkpoint)
    if words is not None and words.kind == "words":
        notes.append(f"Hugging Face's tokenizer splits raw text by Moses's rules: {PRETOKENIZED}")
    if checkpoint.vocab is not None and words is None:
        notes.append(f"the vocabulary is left out: Hugging Face's tokenizer knows no {checkpoint.vocab.kind}")
    return tuple(notes)


def _write_huggingface(folder: Path, checkpoint: Checkpoint) -> None:
    tensors = file_tensors(checkpoint.config, checkpoint.weights, huggingface.NAMING)
    # transformers refuses files that do not say which framework's layout they have.
    write_safetensors(folder / "model.safetensors", tensors, metadata={"format": "pt"})
    write_json(folder / huggingface.CONFIG_FILE, huggingface.config_dict(checkpoint.config, checkpoint.dialect))
    words = _words(checkpoint)
    if words is not None:
        write_atomic(folder / "vocab.pkl", pickle.dumps(_tokenizer_state(words), protocol=2))
        write_json(folder / TOKENIZER_CONFIG, {"language": "en", "lower_case": words.lower_case})


def _tokenizer_state(vocab: SymbolVocabulary) -> dict[str, Any]:
    """The attributes that a tokenizer reads from its vocabulary file; containers and text only."""
    state: dict[str, Any] = {
        "special": [s for s in (vocab.line_end,) if s is not None],
        "lower_case": vocab.lower_case,
        "delimiter": vocab.delimiter,
        "idx2sym": list(vocab.symbols),
        "sym2idx": {s: i for i, s in enumerate(vocab.symbols)},
    }
    return state if vocab.unknown_id is None else state | {"unk_idx": vocab.unknown_id}


def _compare(found: Checkpoint, expected: Checkpoint) -> None:
    """Raise ExportError where what was read back is not what was written."""
    what: Mapping[str, tuple[ModelConfig | Dialect, ModelConfig | Dialect]] = {
        "configuration": (found.config, expected.config),
        "dialect": (found.dialect, expected.dialect),
    }
    differing = [name for name, (a, b) in what.items() if a != b]
    differing += [n for n, w in expected.weights.items() if not np.array_equal(found.weights.get(n, ()), w)]
    rules, wanted = (None if c.vocab is None else c.vocab.to_dict() for c in (found, expected))
    if rules != wanted:
        differing.append("vocabulary")
    if differing:
        raise ExportError(f"what was written is not what was read: {', '.join(differing[:4])} differ: nothing is kept")


# One line per target: what will be read back, what the target cannot say, and what writes it.
TARGETS: dict[str, Callable[[Checkpoint], Plan]] = {"native": _as_native, "huggingface": _as_huggingface}
