"""What memory costs: a model timed over memory lengths, each cell in its own process, against eager."""

from txl_export.benchmarking.measure import bench
from txl_export.benchmarking.render import reading, render
from txl_export.benchmarking.table import Row, Table

__all__ = ["Row", "Table", "bench", "reading", "render"]
