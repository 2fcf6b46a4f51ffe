"""Terminal, CSV and Markdown: what a reader finds there, and what a reader is told to doubt."""

from __future__ import annotations

import csv
import dataclasses
import io

import pytest
from rich.console import Console

from txl_export.benchmarking import Table, render, to_csv, to_markdown
from txl_export.benchmarking.table import Cell, Facts, Limit, Quality, make_rows

MACHINE = {
    "cpu": "Some CPU",
    "cores": 2,
    "logical_cpus": 2,
    "load_average": 0.4,
    "versions": {"python": "3.11", "numpy": "2.4"},
    "limits": {
        "threads": 2,
        "read": [{"bytes": 4 << 20, "bytes_per_second": 4e10}, {"bytes": 1 << 30, "bytes_per_second": 1.2e10}],
        "matmul": [{"size": 512, "flops_per_second": 1.1e11}],
    },
}
# 1 ms of reading, 0.5 ms of computing.
LIMIT = Limit(bytes=10**7, flops=10**8, bandwidth=1e10, flop_rate=2e11)


def table(target="some [odd] name", own=2.0, limit=LIMIT, lengths=(128, 1600), layout="kv", **changes) -> Table:
    rows = []
    for M in lengths:
        kinds = (("eager", "hidden"), ("onnxruntime", layout))
        cells = [Cell(target, backend, lay, M, 64, 32, 2, "log_probs") for backend, lay in kinds]
        measured = {cells[0]: [[8.0, 8.0], [10.0, 10.0]], cells[1]: [[own, own], [own, 2 * own]]}
        facts = {c: Facts(M, 1234.0, 5678.0, 92_000_000, 1_500_000_000, limit) for c in cells}
        rows += make_rows(measured, facts)
    quality = tuple(Quality(target, M, 64, "a|b.txt", 1000, 1.5, 1000) for M in lengths)
    usual = {"machine": MACHINE, "threads": 2, "rounds": 2, "quality": quality, "command": "txl-export bench x"}
    return Table(tuple(rows), **usual | changes)


def printed(t: Table, width: int = 120) -> str:
    text = io.StringIO()
    render(t, Console(file=text, width=width))
    return text.getvalue()


def test_a_terminal_of_120_columns_cuts_nothing():
    wide = table(layout="hidden", own=1234.5, lengths=(3800,))
    text = printed(wide)
    header, _eager, own = text.splitlines()[2:5]
    assert "…" not in text
    assert header.split("  ")[0] == "backend"
    assert own.startswith("onnxruntime hidden 3800 64 32   1234   2432")
    assert own.split()[-6:] == ["(0.01–0.01)", "0", "%", "92", "1500", "5.68"]
    assert max(map(len, text.splitlines())) <= 120


def test_every_column_of_a_terminal_has_its_unit():
    header = next(line for line in printed(table()).splitlines() if line.startswith("backend"))
    for title in (
        "M",
        "L",
        "B",
        "p50 ms",
        "p99 ms",
        "tokens/s",
        "× eager",
        "of limit",
        "MB/stream",
        "RSS MB",
        "first s",
    ):
        assert title in header


def test_the_share_of_the_limit_and_where_it_comes_from():
    text = printed(table())
    own = next(line for line in text.splitlines() if line.startswith("onnxruntime kv"))
    assert " 50 % " in own
    assert "reads 40 GB/s from 4 MiB and 12 GB/s from 1024 MiB, and multiplies matrices at 110 GFLOP/s" in flat(text)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_what_memory_is_worth_is_shown():
    text = flat(printed(table()))
    assert "a|b.txt, 1,000 tokens (1,000 bytes) as one stream in segments of 64" in text
    assert "the first M tokens, whose memory is not yet full, are included" in text
    assert "1600 2.1640 1.5000 4.482" in text


def test_without_limits_and_texts_nothing_is_said_of_them():
    text = printed(table(limit=None, quality=(), machine={"cpu": "Some CPU"}))
    assert "of limit" not in text.splitlines()[1]
    assert "bits per byte" not in text
    assert "note:" not in text


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"own": 0.9},
            "2 of 4 rows are faster than their limit, up to 111 % (onnxruntime kv, M = 128, L = 64, B = 32)",
        ),
        ({"machine": MACHINE | {"load_average": 1.2}}, "busy when the benchmark began (load average 1.2 on 2 cores)"),
        ({"missing": 3}, "3 rows or figures are still missing: the same command goes on"),
    ],
)
def test_doubts_are_told(changes, note):
    quiet, doubtful = table(), table(**changes)
    assert note not in flat(printed(quiet)) and note not in flat(to_markdown(quiet))
    assert note in flat(printed(doubtful))
    assert note in to_markdown(doubtful).partition("\nNote: ")[2]


def test_a_row_at_its_limit_is_no_doubt():
    assert "faster than their limit" not in printed(table(own=0.96))


def test_csv_holds_every_figure_in_full():
    rows = list(csv.DictReader(io.StringIO(to_csv(table(target='a,"b"\nc')))))
    assert len(rows) == 4
    own = rows[1]
    assert (own["target"], own["backend"], own["layout"]) == ('a,"b"\nc', "onnxruntime", "kv")
    assert [own[n] for n in ("mem_len", "segment_len", "batch_size", "threads", "samples")] == [
        "128",
        "64",
        "32",
        "2",
        "4",
    ]
    expected = {
        "p50_ms": 2.0,
        "mean_ms": 2.5,
        "p50_lowest_round_ms": 2.0,
        "p50_highest_round_ms": 3.0,
        "tokens_per_second": 1000 * 64 * 32 / 2.5,
        "ratio": (4 + 10 / 3) / 2,
        "ratio_lowest_round": 10 / 3,
        "ratio_highest_round": 4.0,
        "limit_ms": 1.0,
        "limit_share": 0.5,
        "limit_bytes": 1e7,
        "load_ms": 1234.0,
        "first_ms": 5678.0,
        "peak_rss_bytes": 1.5e9,
        "memory_bytes_per_stream": 92e6,
        "nats": 1.5,
        "bits_per_byte": 1.5 / 0.6931471805599453,
    }
    assert {name: float(own[name]) for name in expected} == pytest.approx(expected)
    assert (own["limit_bound"], own["text"]) == ("reading", "a|b.txt")


def test_csv_leaves_empty_what_is_not_known():
    only = table(limit=None, quality=())
    only = dataclasses.replace(only, rows=tuple(dataclasses.replace(r, ratio=None) for r in only.rows))
    own = list(csv.DictReader(io.StringIO(to_csv(only))))[1]
    assert {own[n] for n in ("ratio", "limit_ms", "limit_share", "limit_bound", "text", "nats", "perplexity")} == {""}


def test_markdown_states_conditions_command_and_every_column():
    text = to_markdown(table())
    assert "head log\\_probs, 2 threads each, 2 rounds in turn, Some CPU" in text
    assert "```sh\ntxl-export bench x\n```" in text
    assert "Versions: python 3.11, numpy 2.4." in text
    grids = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert [len(g) for g in grids] == [2 + 4, 2 + 2]
    for grid in grids:
        assert len({len(line.replace("\\|", "").split("|")) for line in grid}) == 1
    header = [cell.strip() for cell in grids[0][0].split("|")]
    for title in ("p50 ms", "p90 ms", "p99 ms", "mean ms", "limit ms", "bound by", "load s", "first s"):
        assert title in header


def test_names_in_markdown_are_text():
    text = to_markdown(table(target="a|b `c` <img src=x> [d](http://e)\nf", command="echo '```'"))
    assert "**a\\|b \\`c\\` &lt;img src=x> \\[d\\](http://e) f**" in text
    assert "````sh\necho '```'\n````" in text


def test_other_bases_are_named():
    t = table()
    rows = make_rows(
        {r.cell: r.rounds_ms for r in t.rows[:2]}, {r.cell: Facts(0, 1, 1, 1, 1) for r in t.rows[:2]}, "onnxruntime"
    )
    theirs = dataclasses.replace(t, rows=tuple(rows), base="onnxruntime")
    assert "× onnxruntime" in printed(theirs)
    assert "eager is 0.3 (M = 128, L = 64, B = 32) times as fast as onnxruntime per call." in flat(printed(theirs))
