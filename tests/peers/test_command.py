"""`python -m benchmarks` refuses at once what would fail, or never end, after an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import command
from txl_export.errors import InputError


@pytest.mark.parametrize("minutes", ["nan", "inf"])
def test_minutes_are_a_number(minutes: str, tmp_path: Path):
    with pytest.raises(InputError, match="expected a number of minutes"):
        command.main(["--quick", "--minutes", minutes, "--output", str(tmp_path)], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="takes files"):
        command.main(["--quick", "--output", str(tmp_path / "file" / "x")], standalone_mode=False)
