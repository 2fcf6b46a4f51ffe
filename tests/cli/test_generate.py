from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run
from txl_export.cli.generate import Writer
from txl_export.runtime import Engine, Session
from txl_export.vocabulary import ByteVocabulary


@pytest.fixture
def generated(run: Run) -> Any:
    """Runs generate --json and parses what it says."""

    def call(*args: object, stdin: bytes | None = None) -> dict[str, Any]:
        result = run("generate", *args, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        value: dict[str, Any] = json.loads(result.stdout)
        return value

    return call


def expected(source: Path, prompt: bytes, **options: Any) -> list[int]:
    return list(Engine.load(source).session().generate(np.frombuffer(prompt, np.uint8), **options))


def test_tokens_are_those_of_the_session(generated: Any, bundle: Path):
    g = generated(bundle, "--prompt", "zäh", "--max-new-tokens", 12, "--seed", 3, "--temperature", 0.7, "--top-k", 9)
    ids = expected(bundle, "zäh".encode(), max_new_tokens=12, seed=3, temperature=0.7, top_k=9)
    assert g["ids"] == ids
    assert g["text"] == bytes(ids).decode(errors="replace")
    assert (g["tokens"], g["prompt_tokens"], g["backend"]) == (12, 4, "onnxruntime")
    assert g["tokens_per_second"] > 0


def test_sampling_options_reach_the_session(generated: Any, bundle: Path):
    args = (bundle, "--prompt", "a", "--max-new-tokens", 20, "--seed", 5)
    greedy = generated(*args, "--temperature", 0)["ids"]
    assert generated(*args, "--top-p", 1e-6)["ids"] == greedy
    assert generated(*args, "--top-k", 1)["ids"] == greedy
    assert generated(*args)["ids"] != greedy
    assert generated(*args)["ids"] == generated(*args)["ids"]
    assert generated(*args)["ids"] != generated(*args[:-1], 6)["ids"]


def test_what_is_printed_is_the_text_and_nothing_else(run: Run, generated: Any, bundle: Path):
    args = (bundle, "--prompt", "a", "--max-new-tokens", 30, "--seed", 1)
    result = run("generate", *args)
    assert result.exit_code == 0
    assert result.stdout_bytes.decode() == generated(*args)["text"]
    assert (
        result.stderr
        == f"note: {bundle} runs on onnxruntime; not tensorrt, tensorrt-rtx, onnxruntime-cuda (no NVIDIA GPU)\n"
    )


def test_generation_ends_with_a_stop_text(generated: Any, bundle: Path):
    args = (bundle, "--prompt", "a", "--max-new-tokens", 200, "--seed", 1, "--top-p", 0.9)
    free = bytes(generated(*args)["ids"])
    end = next(i for i in range(20, 200) if max(free[i - 2 : i]) < 128 and free.find(free[i - 2 : i]) == i - 2)
    stop = free[end - 2 : end].decode()
    stopped = generated(*args, "--stop", "never said", "--stop", stop)
    assert bytes(stopped["ids"]) == free[:end]


def test_a_prompt_comes_from_text_file_or_stdin(generated: Any, bundle: Path, text: Path, tmp_path: Path):
    data = text.read_bytes()
    np.save(tmp_path / "ids.npy", np.frombuffer(data, np.uint8))
    options = ("--max-new-tokens", 8, "--seed", 2)
    results = [
        generated(bundle, "--prompt", data.decode(), *options),
        generated(bundle, "--prompt-file", text, *options),
        generated(bundle, "--prompt-file", "-", *options, stdin=data),
        generated(bundle, "--ids", tmp_path / "ids.npy", *options),
    ]
    assert all(r["ids"] == results[0]["ids"] and r["prompt_tokens"] == len(data) for r in results)


def test_without_a_prompt_a_line_begins(generated: Any, bundle: Path):
    options = ("--max-new-tokens", 8, "--seed", 2)
    assert generated(bundle, *options)["ids"] == generated(bundle, "--prompt", "\n", *options)["ids"]


def test_a_checkpoint_generates_too(generated: Any, checkpoint: Path, bundle: Path):
    args = ("--prompt", "a", "--max-new-tokens", 8, "--temperature", 0)
    g = generated(checkpoint, *args)
    assert g["backend"] == "eager"
    assert g["ids"] == generated(bundle, *args)["ids"]


def test_a_model_without_a_vocabulary_prints_ids(run: Run, generated: Any, wordless: Path, tmp_path: Path):
    np.save(tmp_path / "ids.npy", np.array([7, 200]))
    args = (wordless, "--ids", tmp_path / "ids.npy", "--max-new-tokens", 5, "--seed", 1)
    g = generated(*args)
    assert g["text"] is None
    assert [int(i) for i in run("generate", *args).stdout.split()] == g["ids"]
    for more in (("--stop", "x"), ()):
        result = run("generate", *(args if more else (wordless,)), *more)
        assert result.exit_code == 2
        assert "without a vocabulary" in result.stderr


def interrupted(*_: object, **__: object) -> Iterator[int]:
    yield from "zä".encode()[:2]  # ends inside a character
    raise KeyboardInterrupt


def test_ctrl_c_keeps_what_came_and_ends_cleanly(run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Session, "generate", interrupted)
    result = run("generate", bundle)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "z\N{REPLACEMENT CHARACTER}", "interrupted\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "a", "--prompt-file", "b"), "each give the prompt"),
        (("--prompt-file", "/dev/null"), "/dev/null is empty"),
        (("--prompt-file", "/dev/null/none"), "/dev/null/none cannot be read"),
        (("--stop", ""), "--stop is empty"),
        (("--temperature", "-1"), "temperature is -1.0"),
        (("--top-p", "2"), "top_p is 2.0"),
        (("--backend", "abacus"), "backend 'abacus' is unknown"),
        (("--mem-len", "50"), "mem_len 50 was asked for, this bundle holds 12"),
        (("--threads", "0"), "threads is 0"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, bundle: Path, args: tuple[str], says: str):
    result = run("generate", bundle, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_characters_come_whole_and_at_once():
    written: list[str] = []
    writer = Writer(ByteVocabulary(), written.append)

    def tokens() -> Iterator[int]:
        for byte in "aß€\x80".encode() + b"\xff" + "€".encode()[:2]:
            yield byte
            shown.append("".join(written))

    shown: list[str] = []
    writer.run(tokens())
    writer.close()
    whole = "aß€\x80\N{REPLACEMENT CHARACTER}"
    assert shown[:4] == ["a", "a", "aß", "aß"]
    assert shown[-1] == whole
    assert writer.text == "".join(written) == whole + "\N{REPLACEMENT CHARACTER}"
