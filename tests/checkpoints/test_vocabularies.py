"""Vocabularies from files: pickles of every kind, `torch.save`, word lists. Pickled classes are made up here."""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import struct
import sys
from collections import Counter, OrderedDict
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.checkpoints.test_huggingface import BASE, their_tensors, write
from tests.helpers import random_checkpoint, tiny_config
from txl_export import TxlError, load_checkpoint
from txl_export.checkpoints import native
from txl_export.checkpoints.pickles import read_pickle
from txl_export.checkpoints.vocabularies import read_vocabulary
from txl_export.errors import CheckpointError

WORDS = ["<eos>", "the", ",", "of", "<unk>", *(f"w{i}" for i in range(24))]


def made(module: str, name: str, monkeypatch, **attributes):
    """An object of a class that can be pickled by name, under a module that does not exist."""
    cls = type(name, (), {"__module__": module})
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        if ".".join(parts[:i]) not in sys.modules:
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(".".join(parts[:i])))
    monkeypatch.setattr(sys.modules[module], name, cls, raising=False)
    value = cls()
    vars(value).update(attributes)
    return value


def state(words=WORDS, **changes):
    counts = Counter({w: 1000 // (i + 1) for i, w in enumerate(words)})
    usual = {"counter": counts, "special": ["<eos>"], "min_freq": 0, "max_size": None, "lower_case": False}
    usual |= {"delimiter": None, "vocab_file": None, "idx2sym": list(words)}
    return usual | {"sym2idx": OrderedDict((w, i) for i, w in enumerate(words))} | changes


def saved(path, value, protocol=2):
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


class Python2Pickler(pickle._Pickler):
    """Writes text, ordered dicts and counters as Python 2 did: all of the TensorFlow code's files come from there."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, value):
        data = value.encode() if isinstance(value, str) else value
        start = b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data))
        self.write(start + data)
        self.memoize(value)

    def save_pairs(self, value):
        self.save_reduce(OrderedDict, ([[k, v] for k, v in value.items()],), obj=value)

    def save_counts(self, value):
        self.save_reduce(Counter, (dict(value),), obj=value)

    dispatch |= {str: save_text, bytes: save_text, OrderedDict: save_pairs, Counter: save_counts}


def saved_by_python_2(path, value):
    with path.open("wb") as f:
        Python2Pickler(f, 2).dump(value)
    return path


def refused(path, *words):
    with pytest.raises(CheckpointError) as e:
        read_vocabulary(path)
    assert "\n" not in str(e.value)
    for word in words:
        assert word in str(e.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickled_vocab_its_attributes_and_a_corpus(tmp_path, monkeypatch, protocol):
    vocab = made("vocabulary", "Vocab", monkeypatch, **state())
    corpus = made(
        "data_utils", "Corpus", monkeypatch, dataset="wt103", vocab=vocab, train=np.arange(5) if protocol < 5 else []
    )
    for value in (vocab, state(), corpus, {"vocab": vocab, "model_config": {}}):
        found, notes = read_vocabulary(saved(tmp_path / "v.pkl", value, protocol))
        assert found.symbols == tuple(WORDS) and not notes
        assert (found.kind, found.line_start, found.line_end, found.unknown) == ("words", None, "<eos>", "<unk>")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_vocab_saved_by_torch(tmp_path, monkeypatch, zipped):
    corpus = made("data_utils", "Corpus", monkeypatch, vocab=made("utils.vocabulary", "Vocab", monkeypatch, **state()))
    corpus.train = torch.arange(9)
    for value in (state(), corpus):
        torch.save(value, tmp_path / "cache.pt", _use_new_zipfile_serialization=zipped)
        assert read_vocabulary(tmp_path / "cache.pt")[0].symbols == tuple(WORDS)


def test_a_corpus_of_the_tensorflow_code(tmp_path, monkeypatch):
    """Its cache.pkl: Python 2's strings and dicts, and beside the vocabulary all tokens of the data as one text."""
    words = [*WORDS[:-1], "zw\u00f6lf" + "x" * 300]
    vocab = made("vocabulary", "Vocab", monkeypatch, **state(words))
    corpus = made("data_utils", "Corpus", monkeypatch, dataset="wt103", vocab=vocab, cutoffs=[9])
    corpus.train, corpus.valid = np.arange(3000), [np.arange(4)]
    for path in (saved_by_python_2(tmp_path / "cache.pkl", corpus), saved(tmp_path / "of_3.pkl", corpus, 2)):
        for most in (1 << 20, 2000):  # the tokens are kept, or passed over, which changes nothing
            monkeypatch.setattr("txl_export.checkpoints.pickles._machine.MOST_BYTES", most)
            assert read_vocabulary(path)[0].symbols == tuple(words)
    monkeypatch.setattr("txl_export.checkpoints.pickles._machine.MOST_BYTES", 256)
    refused(saved(tmp_path / "v", state(words, sym2idx={}, counter={})), "no text")


def test_ordered_dicts_of_python_2(tmp_path):
    """A list that makes two of them gives its pairs to the first: what is small in a file stays small."""
    pairs = b"c" + b"collections\nOrderedDict\n(]q\x01(]q\x02(U\x01aK\x00eetR"
    value = b"\x80\x02}(U\x07sym2idx" + pairs + b"U\x05other" + b"ccollections\nOrderedDict\nh\x01\x85Ru."
    (tmp_path / "v").write_bytes(value)
    assert read_vocabulary(tmp_path / "v")[0].symbols == ("a",)
    assert read_pickle(io.BytesIO(value), "v") == {"sym2idx": {"a": 0}, "other": {}}
    (tmp_path / "v").write_bytes(value.replace(b"U\x01aK\x00", b"U\x01a"))
    refused(tmp_path / "v", "something else than pairs")


def test_a_tokenizer_that_lost_its_list_and_pickled_its_tools(tmp_path, monkeypatch):
    """transformers 4.35 keeps `idx2sym` empty when it loads a vocabulary, and saves all of its attributes."""
    normalizer = made(
        "sacremoses.normalize", "MosesPunctNormalizer", monkeypatch, substitutions=[(re.compile("a"), "b")]
    )
    trie = made("transformers.tokenization_utils", "Trie", monkeypatch, data={}, _tokens=set())
    added = made("tokenizers", "AddedToken", monkeypatch, content="<eos>", lstrip=False)
    extra = {"moses_punct_normalizer": normalizer, "tokens_trie": trie, "_eos_token": added, "look": re.compile(r"\d")}
    value = state(idx2sym=[]) | extra
    assert read_vocabulary(saved(tmp_path / "vocab.pkl", value, 4))[0].symbols == tuple(WORDS)


def test_the_numbers_of_a_dict_count_and_not_its_order(tmp_path):
    backwards = OrderedDict((w, i) for i, w in reversed(list(enumerate(WORDS))))
    assert read_vocabulary(saved(tmp_path / "v", state(idx2sym=[], sym2idx=backwards)))[0].symbols == tuple(WORDS)


def test_options_are_followed(tmp_path):
    lower, _ = read_vocabulary(saved(tmp_path / "a", state(lower_case=True)))
    assert lower.encode(b"THE").tolist() == [1, 0]
    split, _ = read_vocabulary(saved(tmp_path / "b", state(delimiter=",", words=["a b", "c"])))
    assert split.encode(b"a b,c").tolist() == [0, 1]
    letters, _ = read_vocabulary(saved(tmp_path / "c", state(delimiter="", words=["a", " ", "b"])))
    assert letters.encode(b"a b\n").tolist() == [0, 1, 2]
    unknown, _ = read_vocabulary(saved(tmp_path / "d", state(unk_idx=3)))
    assert unknown.encode(b"dog").tolist() == [3, 0]


def test_the_benchmarks_of_bytes(tmp_path):
    enwik8, _ = read_vocabulary(saved(tmp_path / "a", state(words=["32", "101", "116", "10"], lower_case=True)))
    assert enwik8.encode(b"E te".replace(b"E", b"e")).tolist() == [1, 0, 2, 1]
    text8, _ = read_vocabulary(saved(tmp_path / "b", state(words=["_", "e", "t"], lower_case=True)))
    assert text8.encode(b"Te e").tolist() == [2, 1, 0, 1]


def test_the_billion_words_of_lm1b(tmp_path):
    (tmp_path / "1b_word_vocab.txt").write_text("</S> 3\n<S> 2\n<UNK> 9\nthe 8\n, 7\n")
    vocab, _ = read_vocabulary(tmp_path / "1b_word_vocab.txt")
    assert vocab.encode(b"the , dog\n").tolist() == [1, 3, 4, 2, 1]


def test_a_word_list(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("  the 70 \nof\t40\nthe 3\ndog\n", encoding="utf-8")
    vocab, notes = read_vocabulary(path)
    assert vocab.symbols == ("the", "of", "dog") and not notes
    path.write_text("the\n\nof\n")
    refused(path, "no word in line 2")
    path.write_bytes(b"")
    refused(path, "0 symbols")
    path.write_bytes(b"caf\xe9\n")
    refused(path, "neither a pickle nor UTF-8")
    refused(tmp_path / "none", "cannot be read")
    refused(tmp_path, "cannot be read")


def test_words_in_another_order_than_their_counts(tmp_path):
    words = [f"w{i}" for i in range(200)]
    counts = Counter({w: 5000 // (i + 1) for i, w in enumerate(words)})
    path = tmp_path / "v.pkl"
    assert read_vocabulary(saved(path, state(words, counter=counts)))[1] == ()
    (note,) = read_vocabulary(saved(path, state(sorted(words), counter=counts)))[1]
    assert "another order" in note and str(path) in note
    lines = [f"{w} {counts[w]}" for w in sorted(words)]
    (tmp_path / "v.txt").write_text("\n".join(lines))
    (note,) = read_vocabulary(tmp_path / "v.txt")[1]
    assert "another order" in note


def test_contradictions(tmp_path):
    path = tmp_path / "v.pkl"
    refused(saved(path, state(sym2idx={"a": 0, "b": 2}, idx2sym=[])), "without gaps")
    refused(saved(path, state(sym2idx={"a": 0, "b": 0}, idx2sym=[])), "without gaps")
    refused(saved(path, state(sym2idx={"b": 0, "a": 1}, idx2sym=["a", "b"])), "differently")
    refused(saved(path, state(sym2idx={}, idx2sym=[])), "empty vocabulary")
    refused(saved(path, state(sym2idx={}, idx2sym=["a", "a"])), "'a' twice")
    refused(saved(path, state(sym2idx={}, idx2sym=["a", 4])), "no text")
    refused(saved(path, state(delimiter=4)), "no text")
    refused(saved(path, {"vocab": {"vocab": {"vocab": state()}}}), "holds a dict, expected a Vocab")
    refused(saved(path, [1, 2]), "holds a list, expected a Vocab")


def test_a_given_vocabulary(tmp_path):
    native.save(tmp_path / "m", random_checkpoint(tiny_config()))
    given = saved(tmp_path / "v.pkl", state())
    assert load_checkpoint(tmp_path / "m", vocabulary=given).vocab.symbols == tuple(WORDS)
    fewer = load_checkpoint(tmp_path / "m", vocabulary=saved(tmp_path / "w.pkl", state(WORDS[:20])))
    assert "20 words for the model's 29" in fewer.notes[0]
    for words, word in (([*WORDS, "more"], "30 words, the model 29"), (WORDS, None)):
        path = saved(tmp_path / "x.pkl", state(words))
        if word:
            with pytest.raises(CheckpointError, match=word):
                load_checkpoint(tmp_path / "m", vocabulary=path)
    with pytest.raises(CheckpointError, match="29 tokens, expected 256 for bytes"):
        load_checkpoint(tmp_path / "m", vocabulary="bytes")
    native.save(tmp_path / "b", random_checkpoint(tiny_config(vocab_size=256)))
    assert load_checkpoint(tmp_path / "b", vocabulary="bytes").vocab.kind == "bytes"


def test_huggingface_folders_bring_one(tmp_path):
    folder = write(tmp_path / "x", BASE, their_tensors(BASE))
    assert load_checkpoint(folder).vocab is None
    (folder / "vocab.txt").write_text("\n".join(f"t{i}" for i in range(29)))
    assert load_checkpoint(folder).vocab.symbols[3] == "t3"
    torch.save(state([f"b{i}" for i in range(29)]), folder / "vocab.bin")
    assert load_checkpoint(folder).vocab.symbols[3] == "b3"
    saved(folder / "vocab.pkl", state())
    loaded = load_checkpoint(folder)
    assert loaded.vocab.symbols[3] == "of" and "as Hugging Face's tokenizer does" in loaded.notes[0]
    saved(folder / "vocab.pkl", state([*WORDS, "x"]))
    with pytest.raises(CheckpointError, match="another model's vocabulary"):
        load_checkpoint(folder)


def test_without_the_stored_vocabulary(tmp_path):
    """A vocabulary that cannot be read keeps nobody from the model: another may be given, or none."""
    folder = write(tmp_path / "hf", BASE, their_tensors(BASE))
    (folder / "vocab.pkl").write_bytes(b"\x80\x04damaged")
    with pytest.raises(CheckpointError, match=r"was not run.*; --vocabulary none loads the model"):
        load_checkpoint(folder)
    loaded = load_checkpoint(folder, vocabulary="none")
    assert loaded.vocab is None and loaded.notes == ()
    assert load_checkpoint(folder, vocabulary=saved(tmp_path / "v", state())).vocab.symbols == tuple(WORDS)
    made = load_checkpoint(folder, vocabulary=tmp_path / "v")
    native.save(tmp_path / "n", made)
    (tmp_path / "n" / "vocabulary.json").write_text("[]")
    assert load_checkpoint(tmp_path / "n", vocabulary="none").vocab is None


def test_saved_beside_a_native_checkpoint(tmp_path):
    given = saved(tmp_path / "v.pkl", state())
    native.save(tmp_path / "m", random_checkpoint(tiny_config()))
    loaded = load_checkpoint(tmp_path / "m", vocabulary=given)
    for _ in range(2):  # into a new folder, and over what is there
        native.save(tmp_path / "with", loaded)
        assert load_checkpoint(tmp_path / "with").vocab.to_dict() == loaded.vocab.to_dict()
    assert "the" not in json.loads((tmp_path / "with" / "config.json").read_text())["vocabulary"]
    (tmp_path / "with" / "vocabulary.json").unlink()
    with pytest.raises(CheckpointError, match=r"vocabulary\.json is missing"):
        load_checkpoint(tmp_path / "with")


def test_damaged_files_end_in_a_vocabulary_or_in_one_line(tmp_path):
    rng, path = random.Random(0), tmp_path / "v"
    torch.save(state(), tmp_path / "t")
    goods = [pickle.dumps(state(), protocol) for protocol in (2, 4)]
    goods += [(tmp_path / "t").read_bytes(), b"the 3\nof 2\n"]
    for round_ in range(400):
        data = bytearray(goods[round_ % 4])
        for _ in range(rng.choice((1, 1, 3))):
            i = rng.randrange(len(data))
            data[i : i + rng.randrange(3)] = rng.randbytes(rng.randrange(1, 3))
        path.write_bytes(data)
        try:
            read_vocabulary(path)
        except TxlError as e:
            assert "\n" not in str(e) and len(str(e)) < 500
