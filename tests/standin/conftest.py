"""Tests of the stand-in itself have one each."""

from tests.standin.fixtures import gpu  # noqa: F401 - a fixture for all
