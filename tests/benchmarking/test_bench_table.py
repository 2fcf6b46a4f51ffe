"""Statistics, JSON and the reading of a table, on planted samples."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from txl_export.benchmarking import Row, Table, reading, render
from txl_export.benchmarking.table import Cell, Facts, Quality, Ratio, compare, make_rows
from txl_export.errors import InputError


def cell(backend: str = "onnxruntime", mem_len: int = 128, segment_len: int = 4, batch_size: int = 2) -> Cell:
    return Cell("some [odd] name", backend, "kv", mem_len, segment_len, batch_size, 2, "log_probs")


def facts(cells) -> dict[Cell, Facts]:
    return {c: Facts(c.mem_len, 30.0, 50.0, 1024, 5_000_000) for c in cells}


def rows(mem_len: int = 128, own: float = 2.0, eager: float | None = 8.0) -> list[Row]:
    measured = {cell("eager", mem_len): [[eager, eager], [eager, eager]]} if eager else {}
    measured[cell(mem_len=mem_len)] = [[own, own], [own, own]]
    return make_rows(measured, facts(measured))


def table(*groups: list[Row]) -> Table:
    machine = {"cpu": "Some CPU", "cores": 2, "versions": {"python": "3.11"}}
    return Table(tuple(r for g in groups for r in g), machine, 2, 2)


def printed(t: Table) -> str:
    text = io.StringIO()
    render(t, Console(file=text, width=200))
    return text.getvalue()


def test_percentiles_pool_all_rounds():
    (row,) = make_rows({cell(): [[1.0, 2.0, 3.0], [4.0, 105.0]]}, facts([cell()]))
    assert row.samples == 5
    assert (row.p50_ms, row.mean_ms) == (3.0, 23.0)
    assert row.p90_ms == pytest.approx(4 + 0.6 * 101)  # four tenths of the way from rank 4 to 5, linear
    assert row.p99_ms == pytest.approx(4 + 0.96 * 101)
    assert row.tokens_per_second == pytest.approx(1000 * 4 * 2 / 23)


def test_ratio_is_the_median_of_the_rounds_own_ratios():
    eager, own = [[10.0, 10.0, 99.0], [40.0], [60.0]], [[5.0], [10.0, 10.0, 1.0], [10.0]]
    assert compare(own, eager) == Ratio(4.0, 2.0, 6.0)


def test_rounds_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match=r"longer|shorter"):
        compare([[1.0]], [[1.0], [1.0]])


def test_every_row_is_set_against_eager_wherever_it_stands():
    measured = {cell(): [[2.0]], cell("eager"): [[8.0]]}
    own, eager = make_rows(measured, facts(measured))
    assert (own.ratio, eager.ratio) == (Ratio(4.0, 4.0, 4.0), Ratio(1.0, 1.0, 1.0))


def test_without_eager_there_is_no_ratio():
    (row,) = rows(eager=None)
    assert row.ratio is None
    assert row.to_dict()["ratio"] is None


def test_json_round_trip_keeps_samples_and_machine():
    t = table(rows(), rows(512, eager=None))
    value = json.loads(json.dumps(t.to_dict()))
    assert Table.from_dict(value) == t
    assert value["machine"] == {"cpu": "Some CPU", "cores": 2, "versions": {"python": "3.11"}, "threads": 2}
    assert value["rows"][0]["rounds_ms"] == [[8.0, 8.0], [8.0, 8.0]]
    assert value["rows"][1]["ratio"] == {"median": 4.0, "low": 4.0, "high": 4.0}


@pytest.mark.parametrize("value", [None, [], {"format": "other"}, {"format": "txl-export-bench", "schema": 1}])
def test_other_json_is_refused(value):
    with pytest.raises(InputError, match="no benchmark of this version"):
        Table.from_dict(value)


def test_damaged_json_is_refused_in_one_line():
    value = table(rows()).to_dict()
    del value["rows"][0]["rounds_ms"]
    with pytest.raises(InputError, match=r"damaged .*rounds_ms"):
        Table.from_dict(value)


def test_render_shows_every_row_and_how_it_was_measured():
    text = printed(table(rows(), rows(512, own=1.0, eager=8.0)))
    assert "some [odd] name" in text
    assert "2 threads each, 2 rounds in turn, Some CPU" in text
    assert "8.00 (8.00–8.00)" in text
    lines = [line.split() for line in text.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["eager"], ["onnxruntime"])][:4] == [
        ["eager", "128"],
        ["onnxruntime", "kv"],
        ["eager", "512"],
        ["onnxruntime", "kv"],
    ]


def test_render_names_the_targets_where_there_are_several():
    other = [dataclasses.replace(r, target="other") for r in rows()]
    text = printed(table(rows(), other))
    assert [line.split(":")[0] for line in text.splitlines() if ": milliseconds per call" in line] == [
        "some [odd] name",
        "other",
    ]


def test_reading_gives_least_and_most_of_the_ratios():
    assert reading(table(rows(), rows(512, own=1.0))) == (
        "onnxruntime kv is 4.0 (M = 128, L = 4, B = 2) to 8.0 (M = 512, L = 4, B = 2) times as fast as eager per call."
    )


def test_reading_without_eager_says_how_time_grows():
    t = table(rows(512, own=5.0, eager=None), rows(128, own=0.5, eager=None))
    assert (
        reading(t)
        == "onnxruntime kv takes 0.500 ms per call at M = 128, L = 4, B = 2 and 5.00 ms at M = 512, L = 4, B = 2."
    )


def test_a_single_row_is_read_too():
    assert reading(table(rows(eager=None))) == "onnxruntime kv takes 2.00 ms per call (M = 128, L = 4, B = 2)."
    assert "is 4.0 (M = 128, L = 4, B = 2) times as fast" in reading(table(rows()))


@pytest.mark.parametrize("bad", [None, "", "x", [], {}, True, -1, 10**400, float("nan")], ids=lambda v: repr(v)[:8])
@pytest.mark.parametrize("name", ["mem_len", "load_ms", "peak_rss", "memory_bytes"])
def test_a_row_with_an_impossible_figure_is_refused(name, bad):
    value = table(rows()).to_dict()
    value["rows"][0][name] = bad
    with pytest.raises(InputError, match="damaged") as e:
        Table.from_dict(value)
    assert len(str(e.value)) < 200


@pytest.mark.parametrize(
    "samples", [[], [[]], [[0.0]], [[float("inf")]], [["x"]], [[10**400]]], ids=lambda v: repr(v)[:8]
)
def test_a_row_with_impossible_samples_is_refused(samples):
    value = table(rows()).to_dict()
    value["rows"][0]["rounds_ms"] = samples
    with pytest.raises(InputError, match="damaged"):
        Table.from_dict(value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v["machine"].update(threads=None),
        lambda v: v.update(rounds="5"),
        lambda v: v.update(targets={"a": 1}),
        lambda v: v["rows"][0].update(target=3),
        lambda v: v["rows"][1]["ratio"].update(low=0),
        lambda v: v.update(quality=[Quality("a", 1, 1, "t", 1, 10**400, 1)._asdict()]),
    ],
)
def test_a_table_of_other_types_is_refused(damage):
    value = table(rows()).to_dict()
    damage(value)
    with pytest.raises(InputError, match="damaged"):
        Table.from_dict(value)
