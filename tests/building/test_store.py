"""One build at a time, all engines or none, and what is left of builds that were cut off."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.building.conftest import contents, needs_rtx
from tests.bundles import checkpoint_of, one_line
from txl_export.building import build, store
from txl_export.building.store import exclusive
from txl_export.bundle import MANIFEST, Bundle
from txl_export.engines import Target, engine_file, is_leftover
from txl_export.errors import BundleError, EnvironmentMismatch, ExportError
from txl_export.files import write_json

GRAPHS = ("log_probs.L8.onnx", "target_last.L1-8.onnx")
LEFT = ("log_probs.L8.tensorrt-rtx.portable.engine", "target_last.L1-8.tensorrt.nvidia-l4.2.engine.pending")


CUT_OFF = "log_probs.L1-8.tensorrt-rtx.sm80.engine"


def test_names_of_engines_say_what_they_are():
    assert engine_file(GRAPHS[0], "tensorrt-rtx", Target()) == LEFT[0]
    assert engine_file(GRAPHS[0], "tensorrt-rtx", Target(), LEFT) == "log_probs.L8.tensorrt-rtx.portable.2.engine"
    gpu = Target("NVIDIA GeForce RTX 4090 Laptop (x)", ("sm89",))
    assert engine_file("a.onnx", "tensorrt", gpu) == "a.tensorrt.nvidia-geforce-rtx-4090-laptop-x.engine"
    assert is_leftover(engine_file(GRAPHS[1], "tensorrt", gpu), GRAPHS)


@pytest.mark.parametrize("name", [*LEFT, ".manifest.json.x7"])
def test_leftovers_are_known(name):
    assert is_leftover(name, GRAPHS)


@pytest.mark.parametrize("name", ["my.engine", "log_probs.L8.engine", "log_probs.L9.tensorrt.l4.engine", "notes.txt"])
def test_what_users_put_there_is_no_leftover(name):
    assert not is_leftover(name, GRAPHS)


@needs_rtx
def test_leftovers_go_with_the_next_build(single):
    for name in (CUT_OFF, f"{CUT_OFF}.pending"):
        (single / name).write_bytes(b"half")
    (single / "my.engine").write_bytes(b"mine")
    build(single, "tensorrt-rtx")
    assert {p.name for p in single.iterdir()} == {MANIFEST, "my.engine", *Bundle.open(single).manifest.files}


@needs_rtx
def test_an_export_takes_the_place_of_engines_and_leftovers_only(single):
    from txl_export import export

    (single / f"{CUT_OFF}.pending").write_bytes(b"half")
    (single / "notes.txt").write_text("mine")
    options = {"segment_lens": (8,), "cover": False}
    with pytest.raises(ExportError, match=r"notes\.txt"):
        export(checkpoint_of("stepping"), single, **options)
    (single / "notes.txt").unlink()
    export(checkpoint_of("stepping"), single, **options)
    assert {p.name for p in single.iterdir()} == {MANIFEST, *Bundle.open(single).manifest.files}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@needs_rtx
def test_cut_off_before_the_manifest_all_is_as_it_was(single, monkeypatch, error):
    before = contents(single)

    def fail(*_):
        raise error

    monkeypatch.setattr(store, "write_json", fail)
    with pytest.raises((KeyboardInterrupt, OSError)):
        build(single, "tensorrt-rtx", batch=2)
    assert contents(single) == before


@needs_rtx
def test_cut_off_after_the_manifest_the_new_engines_are_there(single, monkeypatch):
    def stop(path: Path, value: object) -> None:
        write_json(path, value)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_json", stop)
    with pytest.raises(KeyboardInterrupt):
        build(single, "tensorrt-rtx", batch=2)
    m = Bundle.open(single).manifest
    assert {e.batch for e in m.engines} == {(2, 2, 2)}
    assert {p.name for p in single.iterdir()} == {MANIFEST, *m.files}


@needs_rtx
def test_the_second_of_two_builds_is_refused(single):
    before = contents(single)
    with exclusive(single), pytest.raises(EnvironmentMismatch, match="another build is at work"):
        build(single, "tensorrt-rtx", force=True)
    assert contents(single) == before
    with exclusive(single):  # nobody holds it any more
        pass


@pytest.mark.parametrize("how", ["manifest", "folder"])
@needs_rtx
def test_an_export_meanwhile_wins(single, tmp_path, how):
    def export(*_: object) -> None:
        if how == "folder":
            single.rename(tmp_path / "old")
            shutil.copytree(tmp_path / "old", single)
        else:
            m = Bundle.open(single, check_files=False).manifest
            write_json(single / MANIFEST, dataclasses.replace(m, versions={"torch": "9"}).to_dict())

    done: list[None] = []
    with pytest.raises(BundleError) as e:
        build(single, "tensorrt-rtx", batch=2, progress=lambda *_: done.append(export()) if not done else None)
    assert "exported anew" in one_line(e.value)
    assert {e.batch for e in Bundle.open(single).manifest.engines} == {(1, 1, 8)}


@needs_rtx
def test_engines_are_checked_like_all_files(single):
    m = Bundle.open(single).manifest
    engine = m.engines[0]
    data = (single / engine.file).read_bytes()
    for damaged, says in ((data[:-9], "truncated"), (data[:-1] + b"\0", "SHA-256"), (None, "missing")):
        (single / engine.file).unlink()
        if damaged is not None:
            (single / engine.file).write_bytes(damaged)
        with pytest.raises(BundleError) as e:
            Bundle.open(single)
        assert says in one_line(e.value)
        assert f"txl-export build {single} --backend tensorrt-rtx --batch 1:1:8" in str(e.value)
        assert Bundle.open(single, engines=False).manifest == m


@needs_rtx
def test_manifests_with_engines_that_belong_nowhere(engines):
    m = engines.bundle.manifest
    first = m.engines[0]
    for odd in (
        dataclasses.replace(first, graph="other.onnx"),
        dataclasses.replace(first, file="other.engine"),
        dataclasses.replace(first, file=m.graphs[0].file),
        m.engines[1],  # its place is taken
    ):
        edited = dataclasses.replace(m, engines=(odd, *m.engines[1:]))
        with pytest.raises(BundleError, match="export again"):
            type(m).from_dict(edited.to_dict(), Path("manifest.json"))
    wrong = m.to_dict()
    wrong["engines"][0]["version"] = 3
    with pytest.raises(BundleError, match="version is 3"):
        type(m).from_dict(wrong, Path("manifest.json"))


def test_a_folder_that_takes_no_files(folder, monkeypatch):
    monkeypatch.setattr(store.os, "access", lambda *_: False)
    with pytest.raises(EnvironmentMismatch, match="copy the bundle elsewhere"):
        build(folder, "tensorrt-rtx")


def test_the_command_that_builds_an_engine_again_asks_for_the_same(engines):
    first = engines.bundle.manifest.engines[0]
    asked = dataclasses.replace(first, tf32=True, opt_level=0, workspace=1 << 20, target=Target(None, ("sm80", "sm89")))
    assert asked.command(Path("my bundle")) == (
        "txl-export build 'my bundle' --backend tensorrt-rtx --batch 1:1:8 --compute-capability sm80,sm89 "
        "--tf32 --opt-level 0 --workspace 1048576"
    )
    on_gpu = dataclasses.replace(first, package="tensorrt", target=Target("NVIDIA L4", ("sm89",)))
    assert on_gpu.command(Path("b")) == "txl-export build b --backend tensorrt --batch 1:1:8"
