"""The pictures of `RESULTS.md`, by the package's own module; without matplotlib there are none."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

from txl_export.benchmarking.table import Table


def draw(section: str, table: Table, folder: Path) -> dict[str, list[str]]:
    """Draw a section's pictures: time against M for each shape, and throughput where several B are there.

    Args:
        section: its name.
        table: what is measured.
        folder: where the files go.

    Returns:
        By "SECTION/SHAPE" the SVG files, relative to the folder above `folder`.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    from txl_export.reporting import pictures, saving

    found: dict[str, list[str]] = {}
    for shape in dict.fromkeys(row.target for row in table.rows):
        own = dataclasses.replace(table, rows=tuple(row for row in table.rows if row.target == shape))
        figures = {
            "latency": pictures.latency(own, title=f"{shape}: time per call"),
            "throughput": pictures.throughput(own),
        }
        for kind, figure in figures.items():
            if figure is not None:
                vector, _ = saving.save(figure, folder / f"{section}-{shape}-{kind}")
                found.setdefault(f"{section}/{shape}", []).append(f"{folder.name}/{vector.name}")
    return found
