"""What a memory length is worth: the text that is read, what scores it, and that it is done once."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import txl_export as txl
from tests.helpers import random_checkpoint, tiny_config
from txl_export.benchmarking import Table, bench, quality, run, to_markdown
from txl_export.benchmarking.notes import notes
from txl_export.benchmarking.plan import Request, plan
from txl_export.benchmarking.quality import Text
from txl_export.benchmarking.table import Quality
from txl_export.benchmarking.target import Target
from txl_export.checkpoints import native
from txl_export.errors import InputError
from txl_export.files import read_json
from txl_export.vocabulary import ByteVocabulary, SymbolVocabulary

WORDS = b"one two three four five six seven eight nine ten\n" * 9


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    monkeypatch.setattr(run, "USUAL_TURN", run.Turn(seconds=0.0, least=5, most=9))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(WORDS)
    return path


def test_figures_follow_from_nats():
    q = Quality("t", 8, 4, "text", tokens=100, nats=2.0, bytes=400)
    assert q.perplexity == pytest.approx(7.389056)
    assert q.bits_per_byte == pytest.approx(2.0 / 0.693147 / 4, rel=1e-5)  # four bytes a token


def test_a_text_ends_with_a_whole_word(text, tmp_path):
    assert Text.read(text, 1000).data == WORDS
    assert Text.read(text, 15).data == b"one two three "
    assert Text.read(text, len(WORDS) - 2).data == WORDS[:-4]
    unbroken = tmp_path / "unbroken"
    unbroken.write_bytes(b"x" * 5000)
    assert Text.read(unbroken, 4000).data == b"x" * 4000


def test_only_whole_segments_are_scored(text):
    read = Text.read(text, 100)
    assert len(read.data) == 98
    assert read.tokens(ByteVocabulary(), 32).size == 97
    with pytest.raises(InputError, match=r"words.txt gives 98 tokens, expected 129 or more"):
        read.tokens(ByteVocabulary(), 128)


@pytest.mark.parametrize(("most", "message"), [(1, "text_bytes is 1, expected 2"), (2.5, "text_bytes is 2.5")])
def test_bad_numbers_are_refused(text, most, message):
    with pytest.raises(InputError, match=message):
        Text.read(text, most)


def test_every_memory_length_is_scored_by_the_model_itself(text, bytes_model, stub_workers):
    stub_workers()
    table = bench([bytes_model], mem_lens=(0, 6, 40), backends=("eager",), rounds=1, threads=1, text=text)
    ids = np.frombuffer(WORDS, np.uint8)[: 1 + (len(WORDS) - 1) // 64 * 64]
    assert [(q.mem_len, q.segment_len, q.tokens, q.bytes, q.text) for q in table.quality] == [
        (M, 64, 384, 384, str(text)) for M in (0, 6, 40)
    ]
    for q in table.quality:
        judge = txl.Engine.load(bytes_model, "eager", mem_len=q.mem_len, threads=1)
        assert q.nats == pytest.approx(judge.score(ids, 64), rel=1e-6)
    assert len({q.nats for q in table.quality}) == 3
    assert Table.from_dict(json.loads(json.dumps(table.to_dict()))) == table


@pytest.mark.parametrize(
    ("backends", "layouts", "scored_on"),
    [
        (("eager",), None, ("eager", "hidden")),
        (("eager", "onnxruntime"), None, ("onnxruntime", "ring")),
        (("onnxruntime",), ("hidden", "kv"), ("onnxruntime", "kv")),
        (("onnxruntime",), ("hidden",), ("onnxruntime", "hidden")),
    ],
)
def test_the_fastest_that_is_compared_anyway_scores(text, bytes_model, backends, layouts, scored_on):
    request = Request.checked(None, (1,), (1,), backends, layouts, 1, 1, Text.read(text))
    (block,) = plan([Target.open(bytes_model)], request)
    assert block.scored_on == scored_on
    # The text's own segments are exported beside the lengths that are timed.
    assert block.graphs("kv") == ["1", "64"]


def test_a_head_that_scores_is_exported_too(text, hollow_bundle):
    vocabulary = {"kind": "bytes"}
    bundle = hollow_bundle(head="top_k", vocabulary=vocabulary, mem_len=6)
    request = Request.checked((9,), (1,), (1,), ("onnxruntime",), None, 1, 1, Text.read(text))
    (block,) = plan([Target.open(bundle)], request)
    assert block.heads == ("top_k", "log_probs")
    with pytest.raises(InputError, match=r"has heads top_k, --text needs target or log_probs"):
        bench([bundle], segment_lens=(1,), backends=("onnxruntime",), text=text)


def test_a_model_without_a_vocabulary_is_refused(text, checkpoint):
    with pytest.raises(InputError, match=r"comes without a vocabulary.*leave out --text"):
        bench([checkpoint], text=text)


def test_a_missing_text_is_refused_before_anything_starts(checkpoint, tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.txt cannot be read"):
        bench([checkpoint], text=tmp_path / "nowhere.txt")


def test_a_figure_is_kept_and_another_text_refused(text, bytes_model, stub_workers, tmp_path, monkeypatch):
    stub_workers()
    output = tmp_path / "bench.json"
    how = {"mem_lens": (6,), "backends": ("eager",), "rounds": 1, "threads": 1, "output": output, "text": text}
    first = bench([bytes_model], **how)

    def refuse(*args):
        raise AssertionError("scored again")

    monkeypatch.setattr(quality, "score", refuse)
    assert bench([bytes_model], **how) == first
    for changed in ({"text_bytes": 200},):
        with pytest.raises(InputError, match=r"measured with text .*words\.txt \w+, now it is \w+"):
            bench([bytes_model], **how | changed)
    text.write_bytes(WORDS[::-1])
    with pytest.raises(InputError, match=r"measured with text .*words\.txt"):
        bench([bytes_model], **how)


def test_an_interrupted_text_keeps_the_rows(text, bytes_model, stub_workers, tmp_path):
    def interrupt(what, spent, total):
        if what.startswith("scoring words.txt at M = 6 on eager: 50 %"):
            raise KeyboardInterrupt

    stub_workers()
    output = tmp_path / "bench.json"
    with pytest.raises(KeyboardInterrupt):
        bench([bytes_model], backends=("eager",), rounds=1, threads=1, text=text, output=output, progress=interrupt)
    kept = Table.from_dict(json.loads(output.read_text()))
    assert (len(kept.rows), kept.quality, kept.missing) == (2, (), 1)


def test_what_a_text_tells_of_its_vocabulary_is_told(tmp_path, stub_workers):
    stub_workers()
    words = ("a", "<unk>", *(f"w{i}" for i in range(27)))
    loose = random_checkpoint(tiny_config(), std=0.3)
    for kind in ("words", "moses-words"):
        vocab = SymbolVocabulary(words, kind, unknown="<unk>")
        native.save(tmp_path / kind, dataclasses.replace(loose, vocab=vocab))
    (tmp_path / "odd").write_text("a b " * 65)
    asked = {"backends": ("eager",), "segment_lens": (1,), "rounds": 1, "threads": 1, "text": tmp_path / "odd"}
    table = bench([tmp_path / "words"], output=tmp_path / "out.json", **asked)
    assert len(table.doubts) == 1 and notes(table)[-1] == table.doubts[0]
    assert f"{tmp_path / 'words'}, {tmp_path / 'odd'}: 50% of the tokens are <unk>" in table.doubts[0]
    assert "50% of the tokens are" in to_markdown(table)
    assert Table.from_dict(read_json(tmp_path / "out.json", InputError)).doubts == table.doubts
    assert bench([tmp_path / "words"], output=tmp_path / "out.json", **asked).doubts == table.doubts
    (tmp_path / "odd").write_text("a w0 w1 a " * 35)
    assert bench([tmp_path / "words"], **asked).doubts == ()
    apart = bench([tmp_path / "moses-words"], pretokenized=True, output=tmp_path / "apart.json", **asked)
    assert "--pretokenized" in apart.command and "--pretokenized" not in table.command
    with pytest.raises(InputError, match="odd"):
        bench([tmp_path / "moses-words"], output=tmp_path / "apart.json", **asked)
