"""What the package logs, on stderr: notes behind the results, warnings at once, nothing of it twice."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from txl_export.cli import score
from txl_export.errors import InputError

LOGGER = logging.getLogger("txl_export")


@pytest.fixture
def logging_verb(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `score` with a body that logs, and raises what it is given."""

    def call(*args: str, error: Exception | None = None) -> Any:
        def body(**_: object) -> None:
            for _i in range(2):
                LOGGER.info("runs on\n%s", "[b]a[/b]")
                LOGGER.warning("engines are unused")
            LOGGER.debug("not of interest")
            if error:
                raise error

        monkeypatch.setattr(score.command, "callback", body)
        return run("score", "model", "text", *args)

    return call


def test_notes_and_warnings_are_lines_that_come_once(logging_verb: Any):
    assert logging_verb().stderr == "warning: engines are unused\nnote: runs on [b]a[/b]\n"
    assert (LOGGER.handlers, LOGGER.level) == ([], logging.NOTSET)


def test_an_error_leaves_notes_out(logging_verb: Any):
    result = logging_verb(error=InputError("no"))
    assert (result.exit_code, result.stderr) == (2, "warning: engines are unused\nerror: no\n")
    assert (LOGGER.handlers, LOGGER.level) == ([], logging.NOTSET)


def test_where_json_is_printed_only_warnings_are_told(logging_verb: Any):
    assert logging_verb("--json").stderr == "warning: engines are unused\n"


def test_the_choice_is_in_the_json(run: Run, bundle: Path, text: Path):
    choice = "onnxruntime; not tensorrt, tensorrt-rtx, onnxruntime-cuda (no NVIDIA GPU)"
    result = run("score", bundle, text, "--json")
    assert (json.loads(result.stdout)["choice"], result.stderr) == (choice, "")
    result = run("generate", bundle, "--max-new-tokens", 2, "--json")
    assert (json.loads(result.stdout)["choice"], result.stderr) == (choice, "")
    assert (
        json.loads(run("score", bundle, text, "--json", "--backend", "onnxruntime").stdout)["choice"] == "onnxruntime"
    )
