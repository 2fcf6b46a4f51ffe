"""Streams started, reset, copied, reordered and saved, on the stand-in for a GPU."""

from tests.runtime.test_streams import *  # noqa: F403
