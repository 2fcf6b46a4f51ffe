"""The fixture `gpu`, for the `conftest.py` of tests that need a GPU: `from tests.standin.fixtures import gpu`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

# The genuine enums and signatures are cuda-python's, which not every system has.
ABSENT = importlib.util.find_spec("cuda") is None and not os.environ.get("CI")
if not ABSENT:
    from tests.standin.gpu import Gpu


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """A GPU that this process may use, of host memory: see `tests.standin.device.StandIn` for what it tells."""
    if ABSENT:
        pytest.skip("cuda-python is not installed: the stand-in takes names from it")
    made = Gpu()
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch)
        yield made
