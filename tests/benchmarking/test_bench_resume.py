"""What is done is kept: through kills, interruptions and repeated commands, and never mixed with other conditions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import random_checkpoint, tiny_config
from txl_export.benchmarking import Table, bench, machine, measure, run
from txl_export.checkpoints import native
from txl_export.errors import EnvironmentMismatch, InputError

# A benchmark in a process of its own with the commands of the test's stubs; argv: bundle, output, stub, rates.
PARENT = """
import sys
from txl_export.benchmarking import bench, limits, process, run
bundle, output, stub, rates = sys.argv[1:]
process.COMMAND, limits.COMMAND = (sys.executable, stub), (sys.executable, rates)
run.USUAL_TURN = run.Turn(0.0, 1, 3)
bench([bundle], segment_lens=(1, 2), batch_sizes=(1, 3), rounds=2, threads=1, output=output)
"""
CELLS = {"segment_lens": (1, 2), "batch_sizes": (1, 3), "rounds": 2, "threads": 1}


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    monkeypatch.setattr(run, "USUAL_TURN", run.Turn(seconds=0.0, least=5, most=9))


@pytest.fixture
def bundle(hollow_bundle):
    return hollow_bundle(segments=("1", "2", "1-2"))


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out" / "bench.json"


def read(path: Path) -> Table:
    return Table.from_dict(json.loads(path.read_text()))


def loads(log: Path) -> list[str]:
    """The cells that workers ran a first round of, in turn."""
    return log.read_text().split()


def noting(log: Path, more: str = "") -> str:
    """A statement for stub workers: write down the cell at its first round."""
    where = "str(cell['segment_len']) + 'x' + str(cell['batch_size'])"
    return f"rounds == 1 and cell['backend'] == 'eager' and open({str(log)!r}, 'a').write({where} + ' '); {more}"


def test_a_killed_run_goes_on_without_repeating(bundle, output, stub_workers, traces, tmp_path):
    log = tmp_path / "log"
    # A worker kills its parent in the last round of the third of four comparisons.
    at = "rounds == 2 and (cell['segment_len'], cell['batch_size'], cell['backend']) == (2, 1, 'eager')"
    stub_workers(noting(log, f"import os; ({at}) and os.kill(os.getppid(), 9)"))
    command = [sys.executable, "-c", PARENT, *map(str, (bundle, output, tmp_path / "stub.py", tmp_path / "rates.py"))]
    killed = subprocess.run(command, env={**machine.os.environ, "TMPDIR": str(traces.folder)}, check=False)
    assert killed.returncode == -9
    assert loads(log) == ["1x1", "1x3", "2x1"]
    assert len(read(output).rows) == 4 and read(output).missing == 4
    assert list(traces.folder.glob("txl-bench-*")) != []  # what a killed process cannot remove

    stub_workers(noting(log))
    said = []
    table = bench([bundle], **CELLS, output=output, log=said.append)
    assert loads(log) == ["1x1", "1x3", "2x1", "2x1", "2x3"]
    assert [(r.segment_len, r.batch_size, r.backend) for r in table.rows] == [
        (L, B, backend) for L in (1, 2) for B in (1, 3) for backend in ("eager", "onnxruntime")
    ]
    assert (read(output), table.missing) == (table, 0)
    assert said[0] == f"2 of 4 comparisons are in {output} and are kept"
    assert [line.split(":")[0] for line in said[1:]] == ["3 of 4", "4 of 4"]
    traces.assert_gone()


def test_a_complete_file_starts_nothing(bundle, output, stub_workers, traces):
    stub_workers()
    first = bench([bundle], **CELLS, output=output)
    started = len(traces.processes)
    assert bench([bundle], **CELLS, output=output) == first
    assert len(traces.processes) == started


def test_more_cells_are_added_to_a_file(bundle, output, stub_workers, tmp_path):
    log = tmp_path / "log"
    stub_workers(noting(log))
    bench([bundle], **CELLS | {"segment_lens": (2,)}, output=output)
    table = bench([bundle], **CELLS, output=output)
    assert loads(log) == ["2x1", "2x3", "1x1", "1x3"]
    assert [r.segment_len for r in table.rows] == [1] * 4 + [2] * 4
    # Asked for less, the file still holds all.
    assert len(bench([bundle], **CELLS | {"segment_lens": (1,)}, output=output).rows) == 8


def test_an_interruption_keeps_what_is_done(bundle, output, stub_workers, traces):
    def interrupt(what, spent, total):
        if what.startswith("round 2") and "L = 2, B = 1" in what:
            raise KeyboardInterrupt

    stub_workers()
    with pytest.raises(KeyboardInterrupt):
        bench([bundle], **CELLS, output=output, progress=interrupt)
    assert (len(read(output).rows), read(output).missing) == (4, 4)
    traces.assert_gone()


def test_a_worker_that_dies_keeps_what_is_done(bundle, output, stub_workers, traces):
    stub_workers("(cell['segment_len'], rounds) == (2, 1) and sys.exit('out of luck')")
    with pytest.raises(EnvironmentMismatch, match="out of luck"):
        bench([bundle], **CELLS, output=output)
    assert (len(read(output).rows), read(output).missing) == (4, 4)
    traces.assert_gone()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 3}, r"measured with rounds 2, now it is 3: .*another --output or add --restart$"),
        ({"threads": 2}, r"with threads 1, now it is 2"),
        ({"cpu": "Another CPU"}, r"with cpu .*, now it is Another CPU"),
        ({"versions": {"numpy": "9"}}, r"with versions .*, now it is numpy 9"),
    ],
)
def test_other_conditions_are_refused(bundle, output, stub_workers, traces, monkeypatch, changes, message):
    stub_workers()
    bench([bundle], **CELLS, output=output)
    before, started = output.read_bytes(), len(traces.processes)
    asked = CELLS | {k: changes.pop(k) for k in ("rounds", "threads") if k in changes}
    described = machine.describe() | changes
    monkeypatch.setattr(measure.machine, "describe", lambda: described)
    with pytest.raises(InputError, match=message) as caught:
        bench([bundle], **asked, output=output)
    assert "\n" not in str(caught.value)
    assert (output.read_bytes(), len(traces.processes)) == (before, started)
    table = bench([bundle], **asked, output=output, restart=True)
    assert (len(table.rows), table.threads, table.rounds) == (8, asked["threads"], asked["rounds"])


def test_another_model_under_the_same_name_is_refused(tmp_path, checkpoint, output, stub_workers):
    stub_workers()
    bench([checkpoint], backends=("eager",), output=output, rounds=1, threads=1)
    native.save(checkpoint, random_checkpoint(tiny_config(), seed=1))
    with pytest.raises(InputError, match=rf"measured with {checkpoint} \w+, now it is \w+"):
        bench([checkpoint], backends=("eager",), output=output, rounds=1, threads=1)


@pytest.mark.parametrize("content", ["{}", "no JSON at all", '{"format": "txl-export-bench", "schema": 1}'])
def test_another_file_is_neither_used_nor_overwritten(bundle, output, stub_workers, content):
    stub_workers()
    output.parent.mkdir()
    output.write_text(content)
    with pytest.raises(InputError, match="--restart") as caught:
        bench([bundle], **CELLS, output=output)
    assert "\n" not in str(caught.value)
    assert output.read_text() == content


def test_limits_are_measured_once_for_a_file(bundle, output, stub_workers, tmp_path):
    stub_workers()
    rates, count = tmp_path / "rates.py", tmp_path / "count"
    rates.write_text(f"open({str(count)!r}, 'a').write('.')\n" + rates.read_text())
    bench([bundle], **CELLS | {"segment_lens": (2,)}, output=output)
    table = bench([bundle], **CELLS, output=output)
    assert count.read_text() == "."
    assert table.machine["limits"]["threads"] == 1
    assert all(row.limit for row in table.rows)
