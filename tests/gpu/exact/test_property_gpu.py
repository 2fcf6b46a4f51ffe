"""Random sequences of everything in layouts `kv` and `hidden`, on a GPU."""

import pytest

from tests.gpu import require_gpu
from tests.runtime.test_property import *  # noqa: F403

require_gpu()
pytestmark = pytest.mark.gpu
