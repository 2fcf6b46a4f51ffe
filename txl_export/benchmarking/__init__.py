"""What memory costs and what it is worth: models timed over memory lengths, each cell in its own process."""

from txl_export.benchmarking.formats import to_csv, to_markdown
from txl_export.benchmarking.measure import bench
from txl_export.benchmarking.notes import reading
from txl_export.benchmarking.render import render
from txl_export.benchmarking.table import Row, Table

__all__ = ["Row", "Table", "bench", "reading", "render", "to_csv", "to_markdown"]
