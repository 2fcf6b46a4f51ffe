"""Everything that happens to sessions of layout `ring`, on a GPU."""

import pytest

from tests.gpu import require_gpu
from tests.runtime.test_ring_sessions import *  # noqa: F403

require_gpu()
pytestmark = pytest.mark.gpu

# The fixture of `conftest.py` takes its place; engines have as many rows as they were built for, so that what needs
# the exact number of rows cannot be asked of them.
del model, test_segments_need_every_row, test_taking_back_needs_every_row  # noqa: F821
# Its other engine is of a bundle that only looks like this one.
del test_a_saved_session_remembers_as_much_as_it_did  # noqa: F821
