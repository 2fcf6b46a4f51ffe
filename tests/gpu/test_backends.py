"""GPU backends on a genuine GPU, and arrays of PyTorch that stay there."""

import numpy as np
import pytest

from tests.gpu import require_gpu
from tests.gpu.checks import *  # noqa: F403
from tests.gpu.checks import exported_as, ids_of

require_gpu()
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", ["ring", "kv"])
def test_tensors_of_pytorch(machine, exported, layout):
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"this PyTorch ({torch.__version__}) runs on no GPU")
    made = exported_as(exported, layout)
    ours, host = (machine.engine(made.path).session(2) for _ in range(2))
    for feed, n in enumerate((8, 1, 1, 20)):
        ids = ids_of(made, feed, n, 2)
        found = torch.from_dlpack(ours.feed(torch.from_numpy(ids).cuda()))
        assert found.is_cuda
        np.testing.assert_array_equal(found.cpu().numpy(), host.feed(ids))
