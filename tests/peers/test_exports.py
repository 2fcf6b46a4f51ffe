"""The steps that export and run published configurations, on a small one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks import export_steps, exports
from benchmarks.exports import Row, Took
from tests.helpers import tiny_config
from txl_export import named_configs
from txl_export.errors import EnvironmentMismatch, InputError

TOOK = Took(2.0, 5_000, 1_000)
ROW = Row("kimiyoung/tiny", 500, 6, 96, TOOK, dataclasses.replace(TOOK, peak=7_000), 2e-5)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A tiny configuration, one head."""
    config = dataclasses.asdict(tiny_config(same_length=True, vocab_size=61, cutoffs=(17, 40)))
    monkeypatch.setitem(named_configs._CONFIGS, ROW.name, config)
    monkeypatch.setitem(named_configs._SOURCES, ROW.name, "nowhere")
    monkeypatch.setattr(export_steps, "HEADS", ("top_k",))
    monkeypatch.setattr(export_steps, "SEGMENT_LENS", (1, 8))
    monkeypatch.setattr(export_steps, "FEEDS", (8, 1, 8))
    return {"name": ROW.name, "mem_len": 5, "head": "top_k"}


def test_what_is_exported_gives_what_the_reference_gives(task: dict[str, object], tmp_path: Path):
    for step in export_steps.STEPS.values():
        step(tmp_path, task)
    assert 0 < exports._difference(tmp_path, "top_k") < 1e-5
    with np.load(tmp_path / "top_k.run.npz") as answers:
        assert [answers[name].shape for name in answers.files] == [(1, 8, 40), (1, 1, 40), (1, 8, 40)]
        changed = dict(answers)
    changed["arr_2"][0, 7, 39] += 1  # the last of all numbers
    np.savez(tmp_path / "top_k.run.npz", **changed)
    assert exports._difference(tmp_path, "top_k") == pytest.approx(1, abs=1e-4)
    np.savez(tmp_path / "top_k.run.npz", changed["arr_0"])
    with pytest.raises(InputError, match="1 answers, the reference 3"):
        exports._difference(tmp_path, "top_k")


def test_a_step_that_dies_is_one_line(tmp_path: Path):
    with pytest.raises(EnvironmentMismatch, match=r"save of mars/tiny ended with 1: .*no configuration is named"):
        exports._step("save", tmp_path, {"name": "mars/tiny"})


def test_imports_are_no_part_of_what_a_model_takes():
    assert (ROW.weights, ROW.export.ratio(ROW.weights), ROW.run.ratio(ROW.weights)) == (2000, 2.0, 3.0)
    assert Row.from_dict(dataclasses.asdict(ROW)) == ROW
    assert "| 2.00 |" in exports.page([ROW]) and "| 3.00 | 2.0e-05 |" in exports.page([ROW])


def test_the_committed_table_is_that_of_the_results():
    text = exports.TARGET.read_text(encoding="utf-8")
    rows = exports._kept().values()
    assert rows and [r.name for r in rows if f"| {' | '.join(r.cells())} |" not in text] == []
