"""Random sequences of everything in layouts `kv` and `hidden`, on the stand-in for a GPU."""

from tests.runtime.test_property import *  # noqa: F403
