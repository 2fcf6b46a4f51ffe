"""`feed`, on a GPU."""

import pytest

from tests.gpu import require_gpu
from tests.runtime.test_session import *  # noqa: F403

require_gpu()
pytestmark = pytest.mark.gpu
