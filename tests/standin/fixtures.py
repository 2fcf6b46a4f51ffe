"""The fixture `gpu`, for the `conftest.py` of tests that need a GPU: `from tests.standin.fixtures import gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.standin.gpu import Gpu


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """A GPU that this process may use, of host memory: see `tests.standin.device.StandIn` for what it tells."""
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-python is not installed: it brings the genuine names")
    from tests.standin.gpu import Gpu

    made = Gpu()
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch)
        yield made
