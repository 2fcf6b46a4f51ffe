"""Words through the command line: a vocabulary from a file into a bundle, plain text scored and continued."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.helpers import random_checkpoint, tiny_config
from tests.test_imports import BLOCK, HEAVY, python
from txl_export.bundle import MANIFEST, Bundle, digest, file_entry
from txl_export.checkpoints import native
from txl_export.errors import BundleError
from txl_export.runtime import Engine
from txl_export.vocabulary import SymbolVocabulary

WORDS = ["<eos>", "the", "cat", "sat", "on", "mat", "<unk>", *(f"w{i}" for i in range(22))]
TEXT = "the cat sat\non the mat\n" * 4


@pytest.fixture(scope="module")
def wordy(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose vocabulary was given at export."""
    folder = tmp_path_factory.mktemp("wordy")
    model = random_checkpoint(tiny_config(mem_len=12, same_length=True), seed=4, std=0.3)
    native.save(folder / "model", model)
    (folder / "v.pkl").write_bytes(pickle.dumps({"idx2sym": WORDS, "lower_case": True}))
    given = ("--vocabulary", folder / "v.pkl")
    result = run("export", folder / "model", "-o", folder / "kv", "--segment-lens", "1,8", "--keep-checkpoint", *given)
    assert result.exit_code == 0, result.output
    return folder / "kv"


def test_words_are_a_file_of_the_bundle(run: Run, wordy: Path):
    manifest = json.loads((wordy / MANIFEST).read_text())
    assert "cat" not in json.dumps(manifest) and "vocabulary.json" in manifest["files"]
    assert json.loads((wordy / "vocabulary.json").read_text()) == WORDS
    assert Bundle.open(wordy).vocab.symbols == tuple(WORDS)
    assert json.loads(run("inspect", wordy, "--json").stdout)["vocabulary"] == "words"
    assert json.loads(run("inspect", wordy / "checkpoint", "--json").stdout)["vocabulary"] == "words"


def test_plain_text_is_scored(run: Run, wordy: Path, tmp_path: Path):
    (tmp_path / "text").write_text(TEXT.replace("the", "The"))
    s = json.loads(run("score", wordy, tmp_path / "text", "--json").stdout)
    ids = np.array([1, 2, 3, 0, 4, 1, 5, 0] * 4)
    assert s["nats_per_token"] == pytest.approx(Engine.load(wordy).score(ids), rel=1e-6)
    assert s["tokens"] == 31 and s["notes"] == []
    # Of the bytes after the first word: a blank or line break belongs to the word or line that it ends.
    assert s["bits_per_byte"] == pytest.approx(s["nats_per_token"] * 31 / math.log(2) / (len(TEXT) - len("the")))


def test_unknown_words_are_told(run: Run, wordy: Path):
    result = run("score", wordy, "-", stdin=f"{TEXT}the dog sat\n")
    assert "note" not in result.stdout and "bits per byte" not in result.stdout
    result = run("score", wordy, "-", stdin="the dog bit a man\n" * 3)
    assert "note: 67% of the tokens are <unk>" in result.stdout


def test_a_wrong_order_of_words_is_told(run: Run, wordy: Path):
    lines = [" ".join(WORDS[-1 - i // 20] for i in range(0, 440, 1 + n)) for n in range(4)]
    ordinary = run("score", wordy, "-", "--json", stdin="\n".join(lines))
    (note,) = json.loads(ordinary.stdout)["notes"]
    assert "another order" in note
    right = "\n".join(" ".join(WORDS[1 + int(22 * (i / 440) ** 3)] for i in range(440)) for _ in range(2))
    assert json.loads(run("score", wordy, "-", "--json", stdin=right).stdout)["notes"] == []


def test_a_prompt_is_continued_on_its_line(run: Run, wordy: Path):
    asked = ("generate", wordy, "--prompt", "The cat", "--max-new-tokens", 30, "--seed", 3)
    said = json.loads(run(*asked, "--json").stdout)
    expected = list(Engine.load(wordy).session().generate([1, 2], 30, seed=3))
    assert said["prompt_tokens"] == 2 and said["ids"] == expected
    words = [WORDS[i] for i in expected]
    assert said["text"].replace("\n", " <eos> ").split() == words
    assert said["text"].startswith(" ") == (expected[0] != 0)
    assert run(*asked).stdout == said["text"]


def test_generation_starts_and_stops_at_ends_of_lines(run: Run, wordy: Path):
    said = json.loads(run("generate", wordy, "--stop", "\n", "--max-new-tokens", 500, "--seed", 1, "--json").stdout)
    assert said["prompt_tokens"] == 1 and said["ids"][-1] == 0 and 0 not in said["ids"][:-1]
    assert said["text"].endswith("\n") and not said["text"].startswith(" ")


def test_a_word_stops_wherever_it_stands(run: Run, wordy: Path):
    asked = ("generate", wordy, "--prompt", "cat", "--max-new-tokens", 60, "--seed", 5, "--json")
    free = json.loads(run(*asked).stdout)["ids"]
    last = next(i for i in range(5, 60) if free[i] != 0 and free[i] not in free[:i])
    stopped = json.loads(run(*asked, "--stop", WORDS[free[last]]).stdout)
    assert stopped["ids"] == free[: last + 1]


def test_a_bundle_keeps_its_vocabulary(run: Run, wordy: Path):
    result = run("score", wordy, "README.md", "--vocabulary", "x")
    assert result.exit_code == 2 and "--vocabulary cannot change" in result.stderr


def test_a_vocabulary_file_that_was_changed(wordy: Path, tmp_path: Path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(wordy, copy)
    swapped = (copy / "vocabulary.json").read_text().replace('"cat"', '"dog"')
    (copy / "vocabulary.json").write_text(swapped)
    with pytest.raises(BundleError, match="not the file that was exported"):
        Bundle.open(copy)
    with pytest.raises(BundleError, match="SHA-256 differs"):
        _ = Bundle.open(copy, check_files=False).vocab
    value = json.loads((copy / MANIFEST).read_text())
    value["files"]["vocabulary.json"] = file_entry(copy / "vocabulary.json")
    (copy / MANIFEST).write_text(json.dumps(value | {"digest": digest(value)}))
    with pytest.raises(BundleError, match="SHA-256 differs"):
        _ = Bundle.open(copy).vocab
    del value["files"]["vocabulary.json"]
    (copy / MANIFEST).write_text(json.dumps(value | {"digest": digest(value)}))
    with pytest.raises(BundleError, match=r"lists no file 'vocabulary\.json'"):
        Bundle.open(copy)
    for wrong in ({"kind": "words", "file": ["vocabulary.json"]}, ["words"]):
        value["vocabulary"] = wrong
        (copy / MANIFEST).write_text(json.dumps(value | {"digest": digest(value)}))
        with pytest.raises(BundleError, match="is damaged"):
            Bundle.open(copy)


def test_text_is_read_without_torch(wordy: Path):
    script = """
import sys
import txl_export as txl
engine = txl.Engine.load(sys.argv[1], threads=1)
ids = engine.info.vocab.encode(b"the cat sat")
print(ids.tolist(), engine.info.vocab.decode(ids).decode().strip())
"""
    assert python(BLOCK.format(blocked=HEAVY) + script, wordy) == "[1, 2, 3, 0] the cat sat\n"


RAW, APART = "It's 5,000.\nThe cat!\n", "It 's 5 @,@ 000 .\nThe cat !\n"
OF_RAW = ["<eos>", "It", "'s", "5", "@,@", "000", ".", "The", "cat", "!", "<unk>", '"', *(f"w{i}" for i in range(17))]


@pytest.fixture(scope="module")
def raw_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that reads raw text as Hugging Face's tokenizer does."""
    model = random_checkpoint(tiny_config(mem_len=12, same_length=True), seed=4, std=0.3)
    vocab = SymbolVocabulary(OF_RAW, "moses-words", line_end="<eos>", unknown="<unk>")
    return native.save(tmp_path_factory.mktemp("raw") / "m", dataclasses.replace(model, vocab=vocab))


def test_words_set_apart_by_a_tokenizer_or_already(run: Run, raw_reader: Path):
    """The same words either way give the same figures; read the wrong way they give others, and a note."""
    raw = json.loads(run("score", raw_reader, "-", "--json", stdin=RAW).stdout)
    apart = json.loads(run("score", raw_reader, "-", "--json", "--pretokenized", stdin=APART).stdout)
    assert raw["nats_per_token"] == apart["nats_per_token"] and raw["tokens"] == apart["tokens"] == 10
    wrong = run("score", raw_reader, "-", stdin=APART)
    assert "needs --pretokenized" in wrong.stdout and "<unk>" in wrong.stdout


def test_generated_words_are_joined_or_left_apart(run: Run, raw_reader: Path):
    asked = ("generate", raw_reader, "--max-new-tokens", 40, "--seed", 1, "--json")
    joined = json.loads(run(*asked, "--prompt", "It's 5,").stdout)
    apart = json.loads(run(*asked, "--prompt", "It 's 5 ,", "--pretokenized").stdout)
    assert joined["prompt_tokens"] == apart["prompt_tokens"] == 4 and joined["ids"] == apart["ids"]
    words = [OF_RAW[i] for i in apart["ids"]]
    assert apart["text"].replace("\n", " <eos> ").split() == words
    vocab = SymbolVocabulary(OF_RAW, "moses-words", line_end="<eos>", unknown="<unk>")
    assert joined["text"] == vocab.decode(joined["ids"], vocab.encode(b"It's 5,", ends=False).tolist()).decode()
    assert " '" not in joined["text"] and " !" not in joined["text"]
    assert run(*asked[:-1], "--prompt", "It's 5,").stdout == joined["text"]


def test_the_whole_prompt_decides_how_a_word_is_joined(run: Run, raw_reader: Path):
    """A quotation mark closes what the prompt opened."""
    prompt, quote, hot = 'The "cat', OF_RAW.index('"'), 50.0  # so hot that any word may follow
    engine = Engine.load(raw_reader)
    ids = engine.info.vocab.encode(prompt.encode(), ends=False)

    def first(seed: int) -> int:
        return next(iter(engine.session().generate(ids, 1, temperature=hot, seed=seed)))

    seed = next(seed for seed in range(1000) if first(seed) == quote)
    asked = ("generate", raw_reader, "--max-new-tokens", 1, "--temperature", hot, "--seed", seed)
    assert run(*asked, "--prompt", prompt).stdout == '"'
    assert run(*asked, "--prompt", prompt, "--pretokenized").stdout != '"'


def test_verify_reads_words_set_apart(run: Run, raw_reader: Path, tmp_path: Path):
    assert run("export", raw_reader, "-o", tmp_path / "b", "--segment-lens", "4", "--no-cover").exit_code == 0
    (tmp_path / "raw").write_text(RAW * 3)
    (tmp_path / "apart").write_text(APART * 3)
    asked = ("verify", tmp_path / "b", "--segments", 7, "--json")
    raw = json.loads(run(*asked, "--text", tmp_path / "raw").stdout)
    apart = json.loads(run(*asked, "--text", tmp_path / "apart", "--pretokenized").stdout)
    assert raw["passed"] and apart["notes"] == raw["notes"] == []
    assert raw["segments"] == apart["segments"] and len(raw["segments"]) == 7
    wrong = json.loads(run(*asked, "--text", tmp_path / "apart").stdout)
    assert any("--pretokenized" in note for note in wrong["notes"])


def test_verify_says_how_a_text_was_read(run: Run, wordy: Path, tmp_path: Path):
    (tmp_path / "odd").write_text("the dog bit a man\n" * 9)
    (tmp_path / "usual").write_text(TEXT * 2)
    said = json.loads(run("verify", wordy, "--text", tmp_path / "odd", "--segments", 3, "--json").stdout)
    assert any("67% of the tokens are <unk>" in note for note in said["notes"])
    said = json.loads(run("verify", wordy, "--text", tmp_path / "usual", "--segments", 3, "--json").stdout)
    assert said["notes"] == [] and said["passed"]
