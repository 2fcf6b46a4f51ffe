"""Engines built from the graphs of a bundle by TensorRT or TensorRT-RTX, in a process of their own."""

from txl_export.building.report import BuildReport, Built
from txl_export.building.run import BATCH, build

__all__ = ["BATCH", "BuildReport", "Built", "build"]
