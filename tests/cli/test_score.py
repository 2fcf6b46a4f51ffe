from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run
from txl_export.runtime import Engine


@pytest.fixture
def scored(run: Run) -> Any:
    """Runs score --json and parses what it says."""

    def call(*args: object, stdin: bytes | None = None) -> dict[str, Any]:
        result = run("score", *args, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        value: dict[str, Any] = json.loads(result.stdout)
        return value

    return call


def nats(source: Path, data: bytes, **load: Any) -> np.ndarray:
    """Of each byte after the first, from whole distributions."""
    ids = np.frombuffer(data, np.uint8).astype(np.int64)
    log_probs = Engine.load(source, **load).session().feed(ids[None, :-1], head="log_probs")
    assert isinstance(log_probs, np.ndarray)
    return -log_probs[0, np.arange(len(ids) - 1), ids[1:]]


def test_the_figures(scored: Any, bundle: Path, text: Path):
    data = text.read_bytes()
    expected = float(nats(bundle, data).mean())
    s = scored(bundle, text)
    assert s["tokens"] == len(data) - 1
    assert s["nats_per_token"] == pytest.approx(expected, rel=1e-5)
    assert s["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert s["bits_per_byte"] == pytest.approx(expected / math.log(2), rel=1e-5)  # a token is a byte
    assert s["tokens_per_second"] == pytest.approx(s["tokens"] / s["seconds"])
    assert (s["backend"], s["mem_len"], s["segment_len"]) == ("onnxruntime", 12, 8)


def test_checkpoint_and_bundle_agree(scored: Any, bundle: Path, checkpoint: Path, text: Path):
    eager = scored(checkpoint, text, "--segment-len", 5)
    assert (eager["backend"], eager["segment_len"]) == ("eager", 5)
    # Equal whatever the segments, because this model has same_length.
    assert eager["nats_per_token"] == pytest.approx(scored(bundle, text)["nats_per_token"], abs=1e-5)


def test_text_comes_from_a_file_from_stdin_or_as_ids(scored: Any, bundle: Path, text: Path, tmp_path: Path):
    data = text.read_bytes()
    np.save(tmp_path / "ids.npy", np.frombuffer(data, np.uint8))
    results = [
        scored(bundle, text),
        scored(bundle, "-", stdin=data),
        scored(bundle, "--ids", tmp_path / "ids.npy"),
    ]
    assert len({(r["tokens"], r["nats_per_token"], r["bits_per_byte"]) for r in results}) == 1


def test_max_tokens_reads_the_beginning_only(scored: Any, bundle: Path, text: Path):
    s = scored(bundle, text, "--max-tokens", 20)
    assert s["tokens"] == 19
    assert s["nats_per_token"] == pytest.approx(float(nats(bundle, text.read_bytes()[:20]).mean()), rel=1e-5)


def test_options_of_a_checkpoint_change_what_is_computed(scored: Any, checkpoint: Path, text: Path):
    usual, short = scored(checkpoint, text), scored(checkpoint, text, "--mem-len", 1)
    clamped = scored(checkpoint, text, "--clamp-len", 1, "--no-same-length")
    assert short["mem_len"] == 1
    assert len({r["nats_per_token"] for r in (usual, short, clamped)}) == 3
    expected = float(nats(checkpoint, text.read_bytes(), mem_len=1).mean())
    assert short["nats_per_token"] == pytest.approx(expected, rel=1e-5)


def test_ids_need_no_vocabulary_and_give_no_bytes(scored: Any, run: Run, wordless: Path, text: Path, tmp_path: Path):
    np.save(tmp_path / "ids.npy", np.arange(30))
    assert scored(wordless, "--ids", tmp_path / "ids.npy")["bits_per_byte"] is None
    assert "bits per byte" not in run("score", wordless, "--ids", tmp_path / "ids.npy").stdout
    result = run("score", wordless, text)
    assert result.exit_code == 2
    assert result.stderr == "error: this model comes without a vocabulary: give token ids with --ids FILE.npy\n"


def test_for_people(run: Run, bundle: Path, text: Path):
    out = run("score", bundle, text).stdout
    assert f"{float(nats(bundle, text.read_bytes()).mean()) / math.log(2):.4f}" in out
    assert "perplexity" in out
    assert "segments of 8" in out


def test_whoever_watches_sees_progress(run: Run, bundle: Path, text: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str, int, int]] = []

    class Recorder:
        def __enter__(self) -> Any:
            return lambda *step: seen.append(step)

        def __exit__(self, *_: object) -> None: ...

    from txl_export.cli import score

    monkeypatch.setattr(score, "progress", lambda unit: Recorder() if unit == "tokens" else None)
    run("score", bundle, text, "--max-tokens", 21)
    assert seen == [("scoring", 8, 20), ("scoring", 16, 20), ("scoring", 20, 20)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty: give a text"),
        (b"x", "scoring got 1 token"),
    ],
)
def test_texts_too_short_to_score(run: Run, bundle: Path, tmp_path: Path, content: bytes, says: str):
    (tmp_path / "short").write_bytes(content)
    for result in (run("score", bundle, tmp_path / "short"), run("score", bundle, "-", stdin=content)):
        assert result.exit_code == 2
        assert says in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 3), np.int64), "holds int64 [2, 3], expected integers [n]"),
        (np.zeros(3), "holds float64 [3], expected integers [n]"),
        (np.zeros(0, np.int64), "is empty"),
        (np.array([1, 256, 3]), "expected tokens from 0 to 255"),
        (np.array([{}]), "not an array saved by numpy.save"),  # pickled: never loaded
    ],
)
def test_ids_that_do_not_fit(run: Run, bundle: Path, tmp_path: Path, array: np.ndarray, says: str):
    np.save(tmp_path / "ids.npy", array)
    result = run("score", bundle, "--ids", tmp_path / "ids.npy")
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00"])
def test_ids_that_cannot_be_read(run: Run, bundle: Path, tmp_path: Path, content: bytes):
    (tmp_path / "ids.npy").write_bytes(content)
    result = run("score", bundle, "--ids", tmp_path / "ids.npy")
    assert result.exit_code == 2
    assert "cannot be read (not an array saved by numpy.save)" in result.stderr


def test_several_arrays_are_not_one(run: Run, bundle: Path, tmp_path: Path):
    np.savez(tmp_path / "ids.npz", a=np.arange(3))
    result = run("score", bundle, "--ids", tmp_path / "ids.npz")
    assert result.exit_code == 2
    assert "holds several arrays" in result.stderr


def test_files_that_are_not_there(run: Run, bundle: Path, text: Path, tmp_path: Path):
    none = tmp_path / "none"
    for args in ((bundle, none), (bundle, "--ids", none), (none, text), (bundle, tmp_path)):
        result = run("score", *args)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("error: ")


def test_one_text_at_a_time(run: Run, bundle: Path, text: Path):
    for args in ((), (text, "--ids", "x.npy")):
        result = run("score", bundle, *args)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "score needs one text" in result.stderr


def test_a_bundle_keeps_its_evaluation_values(run: Run, bundle: Path, text: Path):
    result = run("score", bundle, text, "--clamp-len", 4)
    assert result.exit_code == 2
    assert "is a bundle, --clamp-len cannot change its graphs" in result.stderr
