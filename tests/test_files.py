"""Files are complete or absent, and names from files stay inside their folder."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from txl_export import files
from txl_export.errors import BundleError, CheckpointError, EnvironmentMismatch, InputError, TxlError


def fail_with(code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


@pytest.fixture
def old_folder(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "was").write_text("old")
    return folder


def test_write_atomic_replaces_and_creates(old_file, tmp_path):
    files.write_atomic(old_file, b"new")
    files.write_atomic(tmp_path / "deep" / "er" / "file", b"x")
    assert old_file.read_bytes() == b"new"
    assert (tmp_path / "deep" / "er" / "file").read_bytes() == b"x"
    assert names(tmp_path) == ["deep", "file"]
    assert old_file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_failing_write_leaves_the_old_file(old_file, monkeypatch, code):
    monkeypatch.setattr(os, "fsync", fail_with(code))
    with pytest.raises(EnvironmentMismatch, match=r"space|cannot be written") as e:
        files.write_atomic(old_file, b"new")
    assert "\n" not in str(e.value) and e.value.exit_code == 3
    assert old_file.read_bytes() == b"old"
    assert names(old_file.parent) == ["file"]


def test_other_errors_of_a_write_pass_through(old_file, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        files.write_atomic(old_file, b"new")
    assert names(old_file.parent) == ["file"]


def test_a_file_where_a_folder_should_be(old_file):
    for write in (
        lambda: files.write_atomic(old_file / "below", b"new"),
        lambda: files.write_atomic(old_file.parent, b"new"),
        lambda: files.replacing_folder(old_file).__enter__(),
        lambda: files.replacing_folder(old_file / "below").__enter__(),
    ):
        with pytest.raises(EnvironmentMismatch, match="cannot be written"):
            write()
    assert old_file.read_bytes() == b"old"
    assert names(old_file.parent) == ["file"]


def test_replacing_folder(old_folder, tmp_path):
    with files.replacing_folder(old_folder) as work:
        (work / "is").write_text("new")
        assert names(old_folder) == ["was"]
    with files.replacing_folder(tmp_path / "fresh" / "one") as work:
        (work / "is").write_text("new")
    assert names(old_folder) == ["is"]
    assert names(tmp_path / "fresh" / "one") == ["is"]
    assert names(tmp_path) == ["bundle", "fresh"]
    assert old_folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), BundleError("x")])
def test_a_failing_block_leaves_the_old_folder(old_folder, error):
    with pytest.raises(type(error)), files.replacing_folder(old_folder) as work:
        (work / "half").write_text("new")
        raise error
    assert names(old_folder) == ["was"]
    assert names(old_folder.parent) == ["bundle"]


def test_a_full_disk_leaves_the_old_folder(old_folder):
    with pytest.raises(EnvironmentMismatch, match="no space"), files.replacing_folder(old_folder) as work:
        (work / "half").write_text("new")
        fail_with(errno.ENOSPC)()
    assert names(old_folder) == ["was"]
    assert names(old_folder.parent) == ["bundle"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failing_swap_puts_the_old_folder_back(old_folder, monkeypatch, failing):
    rename, calls = Path.rename, iter(range(99))

    def rename_but_once(self, target):
        if next(calls) == failing:
            fail_with(errno.EACCES)()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_but_once)
    with pytest.raises(EnvironmentMismatch, match="cannot be written"), files.replacing_folder(old_folder):
        pass
    assert names(old_folder) == ["was"]
    assert names(old_folder.parent) == ["bundle"]


def test_a_swap_that_cannot_be_undone_still_keeps_the_old_folder(old_folder, monkeypatch):
    rename, calls = Path.rename, iter(range(99))

    def rename_only_once(self, target):
        return rename(self, target) if next(calls) == 0 else fail_with(errno.EACCES)()

    monkeypatch.setattr(Path, "rename", rename_only_once)
    with pytest.raises(EnvironmentMismatch), files.replacing_folder(old_folder):
        pass
    assert [p.read_text() for p in old_folder.parent.rglob("was/was")] == ["old"]


def test_require_space(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    files.require_space(tmp_path / "not" / "there", 1000)
    with pytest.raises(EnvironmentMismatch, match="free some space"):
        files.require_space(tmp_path / "not" / "there", 1001)


BAD_NAMES = ("", ".", "..", "../x", "/etc/passwd", "a/b", "a/", "./a", "a\\b", "..\\x", "a\0b", None, 3, ["a"])


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_inside_refuses(tmp_path, name):
    with pytest.raises(BundleError, match="only plain names") as e:
        files.inside(tmp_path, name, BundleError)
    assert len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["graph.onnx", ".hidden", "a..b", "..."])
def test_inside_allows(tmp_path, name):
    assert files.inside(tmp_path, name, BundleError) == tmp_path / name


BAD_JSON = {
    "empty": b"",
    "text": b"hello",
    "half": b'{"a": ',
    "latin": b'{"a": "\xff"}',
    "deep": b"[" * 100_000,
    "digits": b"9" * 5000,
}


@pytest.mark.parametrize("kind", BAD_JSON)
def test_read_json_gives_one_line(tmp_path, kind):
    path = tmp_path / "x.json"
    path.write_bytes(BAD_JSON[kind])
    with pytest.raises(CheckpointError, match="not readable JSON") as e:
        files.read_json(path, CheckpointError)
    assert len(str(e.value).splitlines()) == 1


def test_read_json_of_nothing_and_of_a_folder(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        files.read_json(tmp_path / "x", CheckpointError)
    with pytest.raises(CheckpointError, match="not readable"):
        files.read_json(tmp_path, CheckpointError)


def test_json_round_trip_and_hash(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": [1, None, "ü"]})
    assert files.read_json(path, CheckpointError) == {"a": [1, None, "ü"]}
    assert files.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with path.open("rb") as f:
        assert files._sha256_blocks(f) == files.sha256(path)


def test_an_error_is_one_line():
    assert str(TxlError("a\nb\r\nc\u2028d")) == "a b c d"
    assert str(TxlError()) == ""


@pytest.fixture
def pipe(tmp_path):
    """Stands for a device: tests must not try the real ones."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_device_or_pipe_is_not_replaced(pipe):
    (pipe.parent / "link").symlink_to(pipe)
    for path in (pipe, pipe.parent / "link"):
        for write in (files.require_writable, lambda p: files.write_atomic(p, b"new")):
            with pytest.raises(InputError, match="is a device or a pipe") as e:
                write(path)
            assert len(str(e.value).splitlines()) == 1
    assert pipe.is_fifo() and names(pipe.parent) == ["link", "pipe"]


def test_a_link_stays_and_what_it_points_to_is_replaced(old_file):
    link = old_file.with_name("link")
    link.symlink_to(old_file)
    files.write_atomic(link, b"new")
    assert link.is_symlink() and old_file.read_bytes() == b"new"
    assert names(old_file.parent) == ["file", "link"]


def test_require_writable(old_file, tmp_path):
    files.require_writable(tmp_path / "not" / "there", apart_from=[old_file])
    files.require_writable(old_file, apart_from=[tmp_path / "other"])
    for path, apart, said in (
        (tmp_path, [], "it is a folder"),
        (old_file / "below", [], "takes files"),
        (tmp_path / "x" / ".." / "file", [old_file], "named twice"),
    ):
        with pytest.raises(InputError, match=said):
            files.require_writable(path, apart_from=apart)
    assert names(tmp_path) == ["file"]


def test_what_other_packages_say_is_one_short_line():
    assert files.first_line(ValueError("first\nsecond")) == "first"
    assert files.first_line(KeyError()) == "KeyError"
    quoted = files.first_line(ValueError("a name \x1b[31m of a file " + "x" * 5000))
    assert quoted.startswith("a name \\x1b[31m of") and quoted.endswith("x...") and len(quoted) < 210


def test_write_atomic_takes_parts(old_file):
    files.write_atomic(old_file, (part for part in (b"a", memoryview(b"bc"))))
    assert old_file.read_bytes() == b"abc"

    def parts():
        yield b"new"
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(EnvironmentMismatch, match="no space left"):
        files.write_atomic(old_file, parts())
    assert old_file.read_bytes() == b"abc" and [p.name for p in old_file.parent.iterdir()] == [old_file.name]
