"""What a machine cannot hold is refused in one line, before anything is allocated."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tests.bundles import ExportFixture, checkpoint_of, one_line
from txl_export import room
from txl_export.bundle import MANIFEST, Bundle
from txl_export.config import MOST
from txl_export.errors import EnvironmentMismatch
from txl_export.graphs.export import export
from txl_export.room import require_room
from txl_export.runtime import Engine


@pytest.fixture
def of_16_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on."""
    monkeypatch.setattr(room, "machine_bytes", lambda: 16 << 30)


def forged(exported: ExportFixture, folder: Path, mem_len: int) -> Bundle:
    """A copy of a bundle whose manifest says another M throughout."""
    whole = exported("paper")
    shutil.copytree(whole.path, folder)
    manifest = dataclasses.replace(Bundle.open(folder).manifest, mem_len=mem_len)
    (folder / MANIFEST).write_text(json.dumps(manifest.to_dict()))
    return dataclasses.replace(Bundle.open(folder), judge=whole.checkpoint)


@pytest.mark.usefixtures("of_16_gib")
@pytest.mark.parametrize("backend", ["onnxruntime", "typed"])
@pytest.mark.parametrize("mem_len", [10**12 // 800, MOST])
def test_a_bundle_that_claims_an_absurd_memory(exported, tmp_path, backend, mem_len):
    bundle = forged(exported, tmp_path / "forged", mem_len)
    with pytest.raises(EnvironmentMismatch) as e:
        Engine.load(bundle, backend).session()
    text = one_line(e.value)
    assert f"{mem_len:,}" in text and "main memory, this machine has" in text and "take a smaller mem_len" in text


@pytest.mark.usefixtures("of_16_gib")
def test_a_checkpoint_with_an_absurd_memory(tmp_path):
    """Memories that start as zeros of full length cannot be had; those that start empty grow as they are filled."""
    zeros, empty = checkpoint_of("short_memory"), checkpoint_of("paper")
    with pytest.raises(EnvironmentMismatch, match=r"2,147,483,647 tokens for 7 streams.* or fewer streams"):
        Engine.load(zeros, "eager", mem_len=MOST).session(7)
    engine = Engine.load(empty, "eager", mem_len=MOST)
    assert engine.session().feed([[1, 2, 3]]).shape[1] == 3
    with pytest.raises(EnvironmentMismatch, match="exporting with mem_len 2,147,483,647 needs"):
        export(empty, tmp_path / "b", mem_len=MOST)
    assert not (tmp_path / "b").exists()


def test_the_smaller_of_what_is_there_and_what_is_allowed_counts(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(room, "_CGROUP_LIMIT", limit)
    for text, fits in ((None, True), ("max\n", True), ("1000000\n", False)):
        if text:
            limit.write_text(text)
        if fits:
            require_room(2_000_000, "it", "buy more")
        else:
            with pytest.raises(EnvironmentMismatch, match=r"it needs 2.00 MB of main memory.*1.00 MB: buy more"):
                require_room(2_000_000, "it", "buy more")
    require_room(1_000_000, "it", "")
