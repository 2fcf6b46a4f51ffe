"""Graphs against the judge past many wraps of the memory, on the stand-in for a GPU."""

import pytest

from tests.graphs.test_parity import *  # noqa: F403


@pytest.fixture(autouse=True)
def fewer(monkeypatch):
    """Some hundred tokens: the memory wraps often enough, and what the graphs compute is tested elsewhere."""
    monkeypatch.setattr("tests.graphs.test_parity.SEGMENTS", 30)
