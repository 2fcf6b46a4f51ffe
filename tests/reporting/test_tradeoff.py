"""What each memory length brings and costs: which figures of a benchmark are the bundle's."""

from __future__ import annotations

from pathlib import Path

from tests.reporting.conftest import read, row, table
from txl_export.reporting.tables import tradeoff_grid
from txl_export.reporting.tradeoff import tradeoff

OWN = Path("engines/some")


def test_the_bundles_own_rows_are_taken_however_its_path_is_written():
    rows = [row(target="other", ms=9.0), row(target=f"./{OWN}/", ms=2.0)]
    found = tradeoff(table(rows), OWN)
    assert (found.target, [n.row.p50_ms for n in found.timed if n.row]) == (f"./{OWN}/", [2.0])
    assert tradeoff(table(rows[:1]), OWN).target == "other"
    assert tradeoff(table([]), OWN).lengths == ()


def test_text_is_taken_in_the_segments_in_which_most_was_read():
    rare = [q._replace(segment_len=8) for q in read({64: 9.0})]
    found = tradeoff(table([], [*rare, *read({64: 1.5, 128: 1.4})]), OWN)
    assert [found.value(n, "prose") for n in found.lengths] == [1.5, 1.4]


def test_the_table_has_changes_and_gaps():
    quality = [*read({0: 1.5, 64: 1.25}, "/a/one.txt"), *read({64: 2.5}, "/a/two.txt")]
    shown = tradeoff_grid(tradeoff(table([row(mem_len=64, ms=2.0), row(mem_len=128, ms=3.5)], quality), OWN))
    assert shown.columns[1:5] == ("bits per byte, one.txt", "change", "bits per byte, two.txt", "change")
    assert shown.rows == (
        ("0", "1.500", "–", "–", "–", "–", "–", "–"),
        ("64", "1.250", "−0.250", "2.500", "–", "2.00", "–", "64.0 kB"),
        ("128", "–", "–", "–", "–", "3.50", "+1.50", "128 kB"),
    )


def test_perplexities_of_any_size_stay_short():
    found = tradeoff(table([], read({0: 60.0, 64: 0.5}, tokens=999)), OWN)
    assert [found.told(n, "prose") for n in found.lengths] == ["1.2 × 10¹⁸", "1.41"]
