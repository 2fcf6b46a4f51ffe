from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from txl_export.cli import _output
from txl_export.units import si


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (1234567, "1.23 MB"), (246e6, "246 MB"), (5e16, "5.00e+04 TB")],
)
def test_si(value: float, shown: str):
    assert si(value, "B") == shown


def test_json_has_no_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]):
    _output.print_json({"a": [float("inf"), 1.5], "b": {"c": float("nan")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}}


def test_tables_keep_brackets_in_names(capsys: pytest.CaptureFixture[str]):
    _output.print_fields({"file": "[bold]x[/]", "nothing": None})
    out = capsys.readouterr().out
    assert "[bold]x[/]" in out
    assert "nothing" not in out


@pytest.mark.parametrize("watched", [True, False])
def test_progress_is_for_terminals(watched: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_output, "is_terminal", lambda stream: watched)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich asks the stream itself
    with CliRunner().isolation() as (out, err, _):
        with _output.progress("tokens") as report:
            report("counting [all]", 1, 2)
        assert out.getvalue() == b""
        assert (b"counting [all]" in err.getvalue()) is watched


@pytest.mark.parametrize("watched", [True, False])
def test_long_progress_leaves_lines_behind(watched: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_output, "is_terminal", lambda stream: watched)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with CliRunner().isolation() as (out, err, _):
        with _output.long_progress() as (report, log):
            report("round 1 [of 2]", 30, 30 + 60 * 7)
            log("1 of 2: [done]")
        shown = err.getvalue().decode()
        assert out.getvalue() == b""
        assert "1 of 2: [done]" in shown
        assert ("round 1 [of 2]" in shown) is watched
        assert ("about 7 min left" in shown) is watched


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "less than a minute left"),
        (61, "about 1 min left"),
        (5000, "about 83 min left"),
        (9000, "about 2.5 h left"),
    ],
)
def test_remaining_time_is_an_estimate(seconds: float, words: str):
    assert _output.left_over(seconds) == words
