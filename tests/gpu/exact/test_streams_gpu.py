"""Streams started, reset, copied, reordered and saved, on a GPU."""

import pytest

from tests.gpu import require_gpu
from tests.runtime.test_streams import *  # noqa: F403

require_gpu()
pytestmark = pytest.mark.gpu
