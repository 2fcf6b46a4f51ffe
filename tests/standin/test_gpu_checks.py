"""What a genuine GPU is asked (`tests/gpu`), asked of the stand-in: the tests themselves run, and hold here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu.checks import *  # noqa: F403
from tests.gpu.machine import BATCH, Machine
from tests.standin.fixtures import Gpu
from tests.standin.plans import with_engines


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    return lambda exported: with_engines(exported, tmp_path_factory.mktemp("engines") / "bundle", batch=BATCH).path


@pytest.fixture(scope="module")
def machine(built) -> Iterator[Machine]:
    made = Gpu()
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch)
        yield Machine("tensorrt", built, genuine=False)


# It asks the driver, which the stand-in has not; `tests/test_doctor.py` has one that was made up.
del test_doctor_names_the_gpu  # noqa: F821
