"""What peers load is built once, and again when what it is made of changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks import artefacts, shapes
from benchmarks.artefacts import Artefact, ensure
from benchmarks.shapes import make_checkpoint, open_shape
from tests.bundles import one_line
from tests.helpers import tiny_config
from txl_export.checkpoints import native
from txl_export.config import Dialect
from txl_export.errors import EnvironmentMismatch, InputError


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Names what was built; nothing is traced."""
    found = []

    def write(peer, jobs):
        for job in jobs:
            found.append((peer, job["mem_len"], tuple(job["segment_lens"])))
            (Path(job["out"]) / "file").write_text("whole")

    monkeypatch.setattr(artefacts, "_run", write)
    monkeypatch.setattr(artefacts, "CACHE", tmp_path / "cache")
    return found


def make(*wanted):
    ensure(wanted, lambda _: None)


def test_each_is_built_once(built, shape):
    of = [
        Artefact.of(peer, shape, M, (1,))
        for peer in ("kv", "ring", "huggingface", "plain-onnx", "eager")
        for M in (5, 9)
    ]
    make(*of)
    assert sorted(built) == [
        ("huggingface", 0, ()),
        ("kv", 5, (1,)),
        ("kv", 9, (1,)),
        ("plain-onnx", 0, ()),
        ("ring", 0, ()),
    ]
    assert all((a.folder / "file").read_text() == "whole" for a in of if a.peer != "eager")
    assert all(a.made() and a.seconds == 0 for a in of)
    make(*of)
    assert len(built) == 5


def test_built_again_for_more_lengths_other_weights_code_or_packages(built, shape, monkeypatch):
    make(Artefact.of("kv", shape, 5, (1, 64)))
    make(Artefact.of("kv", shape, 5, (64,)))
    assert len(built) == 1
    make(Artefact.of("kv", shape, 5, (1, 16)))
    assert len(built) == 2
    make(Artefact.of("kv", dataclasses.replace(shape, digest="other"), 5, (1,)))
    assert len(built) == 3
    monkeypatch.setattr(artefacts, "versions", lambda: {"torch": "other"})
    make(Artefact.of("kv", shape, 5, (1,)))
    assert len(built) == 4
    monkeypatch.setattr(artefacts, "_code", lambda: "other")
    make(Artefact.of("kv", shape, 5, (1,)))
    assert len(built) == 5


def test_a_failing_build_is_one_line_and_leaves_the_old(shape, tmp_path, monkeypatch, built):
    wanted = Artefact.of("kv", shape, 5, (1,))
    make(wanted)
    monkeypatch.undo()
    monkeypatch.setattr(artefacts, "CACHE", tmp_path / "cache")
    lost = dataclasses.replace(shape, checkpoint=tmp_path / "none", digest="other")
    monkeypatch.setattr(artefacts, "make_checkpoint", lambda _: False)
    with pytest.raises(EnvironmentMismatch) as e:
        make(dataclasses.replace(wanted, shape=lost))
    assert "building kv failed" in one_line(e.value) and "none" in str(e.value)
    assert wanted.made() and (wanted.folder / "file").read_text() == "whole"
    assert [p.name for p in (tmp_path / "cache" / "tiny").iterdir()] == ["kv-M5"]


def test_named_shapes_have_weights_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "CACHE", tmp_path)
    monkeypatch.setattr(shapes, "named_config", lambda _: (tiny_config(), Dialect()))
    shape = open_shape("enwik8-base")
    assert make_checkpoint(shape) and not make_checkpoint(shape)
    assert native.load(shape.checkpoint).config == shape.config == tiny_config()
    monkeypatch.setattr(shapes, "named_config", lambda _: (tiny_config(d_inner=30), Dialect()))
    assert open_shape("enwik8-base").checkpoint != shape.checkpoint
    with pytest.raises(InputError, match="stdlib-bytes"):
        open_shape("nothing")


def test_the_shipped_model_is_told_apart_by_its_weights():
    assert len(open_shape("stdlib-bytes").digest) == 64
    assert not make_checkpoint(open_shape("stdlib-bytes"))
