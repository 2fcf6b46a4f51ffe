"""The worker of a benchmark on the stand-in: `python -m tests.standin.worker`."""

import pytest

from tests.standin.gpu import Gpu
from txl_export.benchmarking.serving import serve
from txl_export.benchmarking.worker import Job

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        Gpu().install(patch)
        serve(Job)
