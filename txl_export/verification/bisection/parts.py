"""The parts of a graph by the names that the exporter gives them, and the values at their ends."""

from __future__ import annotations

from txl_export.bundle import GraphSpec, Manifest


def parts_of(manifest: Manifest, graph: GraphSpec) -> tuple[str, ...]:
    """The parts in the order in which they run: opening, layers, head."""
    return ("opening", *(f"layers.{n}" for n in range(manifest.config.n_layer)), f"heads.{graph.head}")


def output_of(part: str) -> str | None:
    """Name of the value that holds the hidden states after a part; None for a head, which ends the graph."""
    return {"opening": f"{part}/h", "heads": None}.get(part.partition(".")[0], f"{part}/new_h")
