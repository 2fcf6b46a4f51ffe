"""The report as a page: everything that the template shows, already in words."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from txl_export._version import __version__
from txl_export.benchmarking.notes import abilities, notes, read_as
from txl_export.benchmarking.table import Quality
from txl_export.errors import missing_extra
from txl_export.reporting import facts
from txl_export.reporting.commands import bench_command, command, export_command, report_command, verify_command
from txl_export.reporting.contents import Contents
from txl_export.reporting.glance import sentences, tiles, verdict
from txl_export.reporting.saving import inline
from txl_export.reporting.sections import Part, Picture
from txl_export.reporting.tables import bench_grid, segments_grid, tradeoff_grid
from txl_export.reporting.tradeoff import Tradeoff
from txl_export.reporting.unmeasured import unmeasured
from txl_export.reporting.words import clean, tight

_TEMPLATES = Path(__file__).parent / "templates"
_TITLES = {
    "memory": "Quality and time against memory length",
    "quality": "Quality against memory length",
    "latency": "Time per call against memory length",
    "throughput": "Tokens per second against the number of streams",
    "drift": "Largest error of each segment",
    "layers": "Error of the memory by layer",
}


def render(contents: Contents, parts: dict[str, list[Part]]) -> bytes:
    """The page as UTF-8; the same bytes for the same contents.

    Raises:
        EnvironmentMismatch: jinja2 is not installed.
    """
    try:
        jinja2 = importlib.import_module("jinja2")
    except ImportError:
        raise missing_extra("jinja2", "report", "a report") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tight"] = tight
    environment.filters["picture"] = lambda part: jinja2.utils.markupsafe.Markup(_svg(part))
    text: str = environment.get_template("report.html.j2").render(_context(contents, parts))
    return text.encode("utf-8", "replace")


def _svg(part: Picture) -> str:
    return inline(part.figure, part.name, f"{picture_title(part.name)}. {' '.join(part.caption)}")


def picture_title(name: str) -> str:
    """What a picture shows: "latency-8" is the same as "latency", for other streams."""
    plain, _, streams = name.partition("-")
    return _TITLES[plain] + (f", {streams} streams" if streams else "")


def _context(contents: Contents, parts: dict[str, list[Part]]) -> dict[str, Any]:
    bundle, table, verification = contents.bundle, contents.table, contents.verification
    inspected, found = facts.inspected(bundle, list(contents.mem_lens)), contents.tradeoff
    several = found is not None and (len(found.lengths) > 1 or bool(found.texts))
    return {
        "title": facts.title(bundle.path),
        "version": __version__,
        "verdict": verdict(verification),
        "sentences": sentences(contents),
        "tiles": tiles(contents),
        "parts": parts,
        "memory_grid": tradeoff_grid(found) if found and several else None,
        "memory_model": clean(found.target) if found else "",
        "bench_grid": bench_grid(table) if table and table.rows else None,
        "bench_facts": facts.conditions(table) if table else "",
        "verification": facts.verification_facts(verification) if verification else {},
        "notes": [clean(n) for n in verification.notes] if verification else [],
        "segments_grid": segments_grid(verification) if verification else None,
        "model": facts.model_facts(inspected),
        "bundle": facts.bundle_facts(bundle, inspected),
        "graphs": facts.graphs_grid(inspected),
        "files": facts.files_grid(bundle),
        "costs": facts.costs_grid(inspected),
        "read_as": [clean(f"Text: {read_as(q)}.") for q in _texts(found)] if found else [],
        "bench_notes": [clean(_sentence(note)) for note in notes(table)] if table else [],
        "abilities": clean(_sentence(abilities(table) or "")) if table and abilities(table) else "",
        "machine": facts.machine_facts(table.machine, table.threads) if table else {},
        "made_with": facts.versions({"versions": dict(bundle.manifest.versions)}),
        "commands": _commands(contents),
        "unmeasured": unmeasured(contents),
    }


def _texts(found: Tradeoff) -> list[Quality]:
    """A figure of each text."""
    return [next(n.quality[text] for n in found.read(text)) for text in found.texts]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _commands(contents: Contents) -> list[tuple[str, str]]:
    path, table = contents.bundle.path, contents.table
    bench = (
        f"{clean(table.command)} -o bench.json" if table and table.command else bench_command(path, contents.mem_lens)
    )
    return [
        ("Install what measures and reports", "pip install 'txl-export[cpu,export,report]'"),
        ("Export", export_command(contents.bundle)),
        ("Look at it", command("inspect", path)),
        ("Verify", verify_command(path, contents.verification)),
        ("Time", bench),
        ("Report", report_command(path)),
    ]
