"""Tests of the stand-in itself have one each."""

import importlib.util
import os

from tests.standin.fixtures import gpu  # noqa: F401 - a fixture for all

# The genuine enums and signatures are cuda-python's, which not every system has.
_ABSENT = importlib.util.find_spec("cuda") is None and not os.environ.get("CI")
collect_ignore_glob = ["test_*.py"] if _ABSENT else []
