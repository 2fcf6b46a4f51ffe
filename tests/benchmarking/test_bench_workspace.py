"""Temporary folders of processes that were killed are removed, those of living ones never."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from txl_export.benchmarking.workspace import workspace

HOLD = (
    "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
    "from txl_export.benchmarking.workspace import workspace\n"
    "with workspace() as folder:\n"
    "    (folder / 'export').mkdir()\n"
    "    print(folder, flush=True)\n"
    "    sys.stdin.read()\n"
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_only_folders_that_nobody_holds_are_removed(root):
    command = [sys.executable, "-c", HOLD, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = other.stdout.readline().strip()
        with workspace() as own:
            assert {str(p) for p in root.iterdir()} == {folder, str(own)}
        other.kill()
    assert [str(p) for p in root.iterdir()] == [folder]
    with workspace() as own:
        assert list(root.iterdir()) == [own]
    assert list(root.iterdir()) == []


def test_a_folder_of_another_program_is_left_alone(root):
    (root / "txl-bench-mine").mkdir()
    with workspace():
        pass
    assert [p.name for p in root.iterdir()] == ["txl-bench-mine"]


def test_a_failure_removes_the_folder(root):
    with pytest.raises(KeyboardInterrupt), workspace() as own:
        (own / "export").mkdir()
        raise KeyboardInterrupt
    assert list(root.iterdir()) == []
