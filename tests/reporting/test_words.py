"""Names and numbers for people."""

from __future__ import annotations

import pytest

from txl_export.reporting.words import clean, error, listed, ms, short_names, short_paths, shorten, tight, times


def test_text_of_users_becomes_one_printable_line():
    assert clean("a\nb\x00\x1b[0m\udcff\u2028c") == "a b [0m? c"
    assert clean("\n") == clean("") == "(unnamed)"


def test_long_names_keep_both_ends():
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abc…fghijk"


def test_names_cut_alike_stay_apart():
    names = [f"{'x' * 50}{c}{'y' * 50}" for c in "abc"]
    short = short_names(names, 20)
    assert len(set(short.values())) == 3
    assert max(map(len, short.values())) <= 20


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        (["/a/b/model"], ["model"]),
        (["/a/b/one", "/a/b/two/"], ["one", "two"]),
        (["/a/b/one/kv", "/a/c/one/kv"], ["b/one/kv", "c/one/kv"]),
        (["models/one", "two"], ["models/one", "two"]),
        (["a", "a/"], ["a", "a/"]),
        (["/"], ["/"]),
    ],
)
def test_folders_that_all_share_are_left_out(paths: list[str], short: list[str]):
    assert list(short_paths(paths, 40).values()) == short


def test_numbers():
    assert [ms(t) for t in (0.1234, 12.345, 1234.5)] == ["0.123", "12.35", "1,234"]
    assert [error(e) for e in (0.0, 3.34e-5, -2e-9, float("inf"), float("nan"))] == [
        "0", "3.3 × 10⁻⁵", "−2.0 × 10⁻⁹", "not finite", "not finite",
    ]  # fmt: skip
    assert [times(r) for r in (0.754, 2.999, 4.21, 31.4)] == ["0.75", "3.00", "4.2", "31"]
    assert [listed(x) for x in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]


def test_symbols_numbers_and_units_stay_together():
    assert tight("M = 256 takes 1.2 ms, 3.3 × 10⁻⁵") == "M\u00a0=\u00a0256 takes 1.2\u00a0ms, 3.3\u00a0×\u00a010⁻⁵"
