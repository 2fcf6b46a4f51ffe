"""`feed` on the stand-in for a GPU."""

from tests.runtime.test_session import *  # noqa: F403
