"""Tests of the stand-in itself have one each."""

from tests.standin.fixtures import (
    ABSENT,
    gpu,  # noqa: F401 - a fixture for all
)

collect_ignore_glob = ["test_*.py"] if ABSENT else []
