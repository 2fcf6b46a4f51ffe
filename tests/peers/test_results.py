"""`RESULTS.md` and `results.json`: both sections, rows with their ratios, and what is missing."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import __main__ as program
from benchmarks.matrix import Point
from benchmarks.results import render
from benchmarks.section import Gap, Section, read_sections, write_sections
from tests.bundles import one_line
from txl_export.errors import InputError

A, B = Point("tiny", 1, 128, 1), Point("tiny", 16, 640, 8)


@pytest.fixture
def section(bench) -> Section:
    running = bench.campaign(bench.plan(A, B))
    running.run()
    return running.section()


def line_of(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_every_peer_the_ratios_and_the_limit(section):
    text = render({"full": section}, {})
    assert "## Full matrix" in text and "## Quick" not in text
    cells = line_of(text, "| 1 | 1 | 128 |")
    assert cells[3:8] == ["42.0", "31.5", "21.0", "10.5", "2.10"]
    assert cells[8:10] == ["**20.0×** (20.0–20.0)", "**5.00×** (5.00–5.00)"]
    assert cells[10:] == ["1.00 (reading)", "48 %"]
    assert line_of(text, "| 8 | 16 | 640 |")[3:8] == cells[3:8]
    for condition in (
        "a CPU",
        "torch 2",
        "2 threads",
        "of 3 to 3 timed calls",
        "make bench",
        "60 minutes",
        "40.0 GB/s",
        "500 GFLOP/s",
    ):
        assert condition in text


def test_a_peer_that_is_missing_in_a_row_leaves_a_dash(section):
    rows = [row for row in section.table.rows if (row.backend, row.segment_len) != ("plain-onnx", 16)]
    text = render(
        {"full": dataclasses.replace(section, table=dataclasses.replace(section.table, rows=tuple(rows)))}, {}
    )
    cells = line_of(text, "| 8 | 16 | 640 |")
    assert cells[6] == "–" and cells[9] == "–" and cells[8] != "–"


def test_of_ours_the_first_that_was_measured_is_compared(section):
    rows = [dataclasses.replace(r, backend="ring") if r.backend == "kv" else r for r in section.table.rows]
    text = render(
        {"full": dataclasses.replace(section, table=dataclasses.replace(section.table, rows=tuple(rows)))}, {}
    )
    assert "ring vs huggingface" in text and "kv vs" not in text and "kv vs" in render({"full": section}, {})


def test_what_is_missing_is_listed_with_its_reason(section):
    lacking = dataclasses.replace(
        section,
        left=(A, A._replace(mem_len=640)),
        skipped=(Gap(B, ("compile",), "the processes would hold 99 GB"),),
        failed=(Gap(B, ("kv",), "died: <b>|*bad*"),),
    )
    text = render({"full": lacking}, {})
    assert "- tiny, B = 1, L = 1, M = 128, 640" in text
    assert "- tiny, B = 8, L = 16, M = 640 (compile): the processes would hold 99 GB" in text
    assert "died: \\<b\\>\\|\\*bad\\*" in text


def test_results_come_back_and_are_small(section, tmp_path):
    file = tmp_path / "results.json"
    write_sections(file, {"full": section})
    back = read_sections(file)["full"]
    assert [row.cell for row in back.table.rows] == [row.cell for row in section.table.rows]
    np.testing.assert_allclose(back.table.rows[0].rounds_ms, section.table.rows[0].rounds_ms, rtol=1e-3)
    assert render({"full": back}, {}) == render({"full": section}, {})
    assert all(len(str(ms)) <= 6 for row in json.loads(file.read_text())["sections"]["full"]["table"]["rows"]
               for samples in row["rounds_ms"] for ms in samples)  # fmt: skip


def test_another_file_is_refused(tmp_path):
    file = tmp_path / "results.json"
    for content in ("{}", "[]", '{"format": "txl-export-peers", "schema": 1, "sections": {"full": {}}}', "no"):
        file.write_text(content)
        with pytest.raises(InputError) as e:
            read_sections(file)
        assert "results.json" in one_line(e.value)
    assert read_sections(tmp_path / "none.json") == {}


def test_a_run_writes_its_section_and_keeps_the_other(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        program.pictures, "draw", lambda section, table, folder: {f"{section}/tiny": [f"{section}.svg"]}
    )
    program.run(bench.plan(A), tmp_path)
    program.run(bench.plan(B, name="quick", again=True), tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.index("## Quick") < text.index("| 8 | 16 | 640 |") < text.index("## Full matrix")
    assert "(quick.svg)" in text and "(full.svg)" in text
    assert len(bench.compared) == 2
    program.run(bench.plan(A), tmp_path)  # complete: kept
    assert len(bench.compared) == 2
    program.run(bench.plan(B, name="quick", again=True), tmp_path)  # complete: measured again
    assert len(bench.compared) == 3
    program.run(bench.plan(A), tmp_path, restart=True)
    assert len(bench.compared) == 4
    assert "1 comparisons" in capsys.readouterr().out
