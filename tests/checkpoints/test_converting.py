"""Conversions: nothing is lost, clusters are in the target's order, what cannot be said is refused or told."""

from __future__ import annotations

import dataclasses
import json
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bundles import MODELS, checkpoint_of
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.helpers import random_checkpoint, random_ids, tiny_config
from txl_export import TransformerXL, convert, load_checkpoint
from txl_export.checkpoints import converting, detect_origin, native
from txl_export.config import Dialect
from txl_export.errors import EnvironmentMismatch, ExportError, InputError
from txl_export.vocabulary import ByteVocabulary, SymbolVocabulary

TAILS = tiny_config(vocab_size=61, cutoffs=(17, 30, 40), div_val=2, tie_projs=(False, True, True, True))
OVERRIDES = ("--clamp-len", 3, "--mem-len", 9, "--same-length")
REVERSED = Dialect(cluster_order="reversed")
WORDS = SymbolVocabulary([f"w{i}" for i in range(60)] + ["<eos>"], lower_case=True, line_end="<eos>")


def answers(checkpoint) -> torch.Tensor:
    """Of two segments, from a memory of zeros whatever the dialect says."""
    zeros = dataclasses.replace(checkpoint, dialect=dataclasses.replace(checkpoint.dialect, initial_memory="zeros"))
    model = TransformerXL.from_checkpoint(zeros)
    first, memory = model(torch.from_numpy(random_ids(checkpoint.config, 2, 7)))
    second, _ = model(torch.from_numpy(random_ids(checkpoint.config, 2, 7, seed=1)), memory)
    return torch.cat([first, second])


@pytest.mark.parametrize("name", [n for n, (c, d) in MODELS.items() if not (c.same_length and d.window_extra)])
def test_huggingface_files_give_the_same_model(tmp_path, name):
    source = checkpoint_of(name)
    made = convert(source, tmp_path / "hf", "huggingface")
    assert detect_origin(tmp_path / "hf")[0] == "huggingface" and made.path == tmp_path / "hf"
    loaded = load_checkpoint(tmp_path / "hf")
    assert loaded.config == source.config
    torch.testing.assert_close(answers(loaded), answers(source), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dialect", [REVERSED, Dialect("zeros", 1, "forward", 1e-12)])
def test_native_files_keep_everything(tmp_path, dialect):
    source = dataclasses.replace(random_checkpoint(TAILS, dialect), vocab=WORDS)
    convert(source, tmp_path / "n")
    loaded = load_checkpoint(tmp_path / "n")
    assert (loaded.config, loaded.dialect) == (TAILS, dialect) and loaded.vocab.to_dict() == WORDS.to_dict()
    assert all(np.array_equal(loaded.weights[n], w) for n, w in source.weights.items())


def test_there_and_back(tmp_path):
    source = random_checkpoint(TAILS, REVERSED)
    convert(source, tmp_path / "hf", "huggingface")
    back = load_checkpoint(convert(load_checkpoint(tmp_path / "hf"), tmp_path / "n").path)
    differing = {n for n, w in source.weights.items() if not np.array_equal(back.weights[n], w)}
    assert differing == {"softmax.cluster_weight", "softmax.cluster_bias"}
    assert all(np.array_equal(back.weights[n], source.weights[n][::-1]) for n in differing)


def test_the_window_that_huggingface_lacks(tmp_path):
    wide = random_checkpoint(tiny_config(same_length=True), Dialect(window_extra=1))
    with pytest.raises(ExportError, match=r"mem_len \+ 1 keys.*--set window_extra=0"):
        convert(wide, tmp_path / "x", "huggingface")
    assert not list(tmp_path.iterdir())
    convert(random_checkpoint(tiny_config(), Dialect(window_extra=1)), tmp_path / "x", "huggingface")


def test_what_is_told(tmp_path):
    empty = dataclasses.replace(random_checkpoint(tiny_config(vocab_size=256)), vocab=ByteVocabulary())
    made = convert(dataclasses.replace(empty, notes=("of the source",)), tmp_path / "a", "huggingface")
    assert len(made.notes) == 3 and made.notes[0] == "of the source"
    assert "starts from zeros" in made.notes[1] and "knows no bytes" in made.notes[2]
    zeros = random_checkpoint(tiny_config(), Dialect(initial_memory="zeros"))
    assert convert(zeros, tmp_path / "b", "huggingface").notes == ()
    assert convert(random_checkpoint(tiny_config(mem_len=0)), tmp_path / "c", "huggingface").notes == ()


def test_the_vocabulary_is_a_pickle_of_containers(tmp_path):
    convert(dataclasses.replace(random_checkpoint(TAILS), vocab=WORDS), tmp_path / "hf", "huggingface")
    data = (tmp_path / "hf" / "vocab.pkl").read_bytes()
    assert not {"GLOBAL", "STACK_GLOBAL", "REDUCE"} & {op.name for op, *_ in pickletools.genops(data)}
    state = pickle.loads(data)  # noqa: TID251 - written by this test
    assert state["sym2idx"]["<eos>"] == 60 and state["lower_case"] is True
    rules = load_checkpoint(tmp_path / "hf").vocab.to_dict()
    assert rules == WORDS.to_dict() | {"kind": "moses-words"} and rules["lower_case"] is True


def test_where_it_may_not_write(tmp_path):
    source = random_checkpoint(tiny_config())
    with pytest.raises(InputError, match="target 'onnx' is unknown: use one of native, huggingface"):
        convert(source, tmp_path / "x", "onnx")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    for path in (tmp_path / "full", tmp_path / "full" / "mine"):
        with pytest.raises(ExportError, match="not empty"):
            convert(source, path)
    assert (tmp_path / "full" / "mine").read_text() == "x"
    (tmp_path / "empty").mkdir()
    assert convert(source, tmp_path / "empty").path == tmp_path / "empty"


def test_nothing_stays_of_a_conversion_that_fails(tmp_path, monkeypatch):
    source = random_checkpoint(TAILS)

    def wrong(folder: Path, checkpoint) -> None:
        w = dict(checkpoint.weights)
        w["softmax.biases.0"] = w["softmax.biases.0"] + 1
        native.save(folder, dataclasses.replace(checkpoint, weights=w))

    monkeypatch.setitem(converting.TARGETS, "native", lambda c: (c, (), wrong))
    with pytest.raises(ExportError, match=r"softmax\.biases\.0 differ: nothing is kept"):
        convert(source, tmp_path / "n")
    other = random_checkpoint(tiny_config())
    monkeypatch.setitem(converting.TARGETS, "native", lambda c: (c, (), lambda f, _: native.save(f, other)))
    with pytest.raises(ExportError, match="configuration"):
        convert(source, tmp_path / "n")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Disk", (), {"free": 1000}))
    with pytest.raises(EnvironmentMismatch, match="free some space"):
        convert(source, tmp_path / "n")
    assert not list(tmp_path.iterdir())


def test_the_command(run, tmp_path):  # noqa: F811 - the fixture
    native.save(tmp_path / "m", random_checkpoint(TAILS, REVERSED))
    (tmp_path / "words").write_text("\n".join(WORDS.symbols))
    said = run(
        "convert", tmp_path / "m", "-o", tmp_path / "hf", "--to", "huggingface", "--vocabulary", tmp_path / "words"
    )
    assert said.exit_code == 0 and "tensors read back and equal" in said.stdout and "note: Hugging Face" in said.stdout
    assert load_checkpoint(tmp_path / "hf").vocab.symbols == WORDS.symbols
    again = run("convert", tmp_path / "m", "-o", tmp_path / "hf")
    assert again.exit_code == 2 and "not empty" in again.stderr
    value = json.loads(run("convert", tmp_path / "hf", "-o", tmp_path / "n", *OVERRIDES, "--json").stdout)
    assert value["origin"] == "native" and "--pretokenized" in value["notes"][0]
    assert load_checkpoint(tmp_path / "n").vocab.kind == "moses-words"
    evaluated = load_checkpoint(tmp_path / "n").config
    assert (evaluated.clamp_len, evaluated.mem_len, evaluated.same_length) == (3, 9, True)
