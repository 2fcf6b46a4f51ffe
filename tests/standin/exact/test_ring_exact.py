"""Everything that happens to sessions of layout `ring`, on the stand-in for a GPU."""

from tests.runtime.test_ring_sessions import *  # noqa: F403

# The fixture of `conftest.py` takes its place; engines have as many rows as they were built for, so that what needs
# the exact number of rows cannot be asked of them.
del model, test_segments_need_every_row, test_taking_back_needs_every_row  # noqa: F821
