"""The stand-in as a whole: a device, and the modules that reach it."""

from __future__ import annotations

import sys

import pytest

from tests.standin.cudart_graphs import Cudart
from tests.standin.device import StandIn
from tests.standin.trt import TensorRT
from txl_export.building.packages import PACKAGES


class Gpu(StandIn):
    """A device and the modules that reach it."""

    def __init__(self) -> None:
        """Make both."""
        super().__init__()
        self.cudart = Cudart(self)
        self.packages = {name: TensorRT(self, name) for name in PACKAGES}
        self.trt = self.packages["tensorrt"]

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put it in the place of a GPU, for as long as the patch holds."""
        patch.setitem(sys.modules, "cuda.bindings.runtime", self.cudart)  # type: ignore[arg-type]
        for name, module in self.packages.items():
            patch.setitem(sys.modules, PACKAGES[name].module, module)  # type: ignore[arg-type]
        patch.setattr("txl_export.backends.cuda.devices", lambda: [self.device])
