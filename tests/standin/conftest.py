"""Tests on the stand-in have one each, and small bundles with engines of it."""

from tests.standin.fixtures import (
    ABSENT,
    gpu,  # noqa: F401 - a fixture for all
)

if not ABSENT:
    from tests.standin.drives import small  # noqa: F401 - likewise

collect_ignore_glob = ["test_*.py"] if ABSENT else []
