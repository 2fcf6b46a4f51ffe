"""Tests on the stand-in have one each, and small bundles with engines of it."""

from __future__ import annotations

import pytest

from tests.standin.fixtures import (
    ABSENT,
    gpu,  # noqa: F401 - a fixture for all
)

if not ABSENT:
    from tests.standin.drives import small  # noqa: F401 - likewise

collect_ignore_glob = ["test_*.py"] if ABSENT else []

# Each costs an export, or half a minute, and shows on a GPU nothing that others here don't: other windows and types
# are the graphs' business, short memories and none are in `test_gpu_sessions.py`, a batch is more than one stream.
LEFT_OUT = {
    "test_ring_exact.py": ("short_memory", "no_memory", "wider_window", "[sliding-"),
    "test_parity_exact.py": ("[1-",),
    "test_gpu_checks.py": ("fp16",),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is listed above."""
    items[:] = [i for i in items if not any(words in i.name for words in LEFT_OUT.get(i.path.name, ()))]
