"""Tests that need a GPU, `pytest -n 0 -m gpu`, and what they share with the stand-in for one."""

import pytest

from txl_export.backends import cuda


def require_gpu() -> None:
    """Skip a module on a machine without a GPU."""
    if not cuda.devices():
        pytest.skip("this machine has no NVIDIA GPU", allow_module_level=True)
