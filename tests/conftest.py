"""What all tests share: one thread per worker, and hypothesis without clocks or a database."""

import torch
from hypothesis import settings

from tests.bundles import exported  # noqa: F401 - a fixture for all

torch.set_num_threads(1)  # two workers: more threads only fight

settings.register_profile("txl", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("txl")
