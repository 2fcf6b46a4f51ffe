"""Graphs against the judge past many wraps of the memory, on a GPU."""

import pytest

from tests.gpu import require_gpu
from tests.graphs.test_parity import *  # noqa: F403

require_gpu()
pytestmark = pytest.mark.gpu
