"""The report as a page: everything that the template shows, already in words."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl_export._version import __version__
from txl_export.benchmarking.table import Row, Table
from txl_export.bundle import Bundle
from txl_export.errors import missing_extra
from txl_export.reporting import facts, headline
from txl_export.reporting.commands import bench_command, command, export_command, report_command, verify_command
from txl_export.reporting.saving import inline
from txl_export.reporting.sections import Part, Picture, accuracy_parts, memory_parts, speed_parts
from txl_export.reporting.tables import bench_grid, segments_grid, tradeoff_grid
from txl_export.reporting.tradeoff import Tradeoff, tradeoff
from txl_export.reporting.words import clean, error, ms, size, tight, times
from txl_export.verification.report import Report

_TEMPLATES = Path(__file__).parent / "templates"
_TITLES = {
    "memory": "Quality and time against memory length",
    "quality": "Quality against memory length",
    "latency": "Time per call against memory length",
    "throughput": "Tokens per second against the number of streams",
    "drift": "Largest error of each segment",
    "layers": "Error of the memory by layer",
}


@dataclass(frozen=True)
class Contents:
    """What a report is made of.

    Attributes:
        bundle: opened.
        verification: None where it was not run.
        table: a benchmark; None where it was not run.
        mem_lens: memory lengths that the costs and the commands name.
    """

    bundle: Bundle
    verification: Report | None
    table: Table | None
    mem_lens: tuple[int, ...]

    def parts(self) -> dict[str, list[Part]]:
        """Pictures by section, drawn now."""
        path, lengths = self.bundle.path, list(self.mem_lens)
        return {
            "memory": list(memory_parts(self.table, path, lengths)),
            "speed": list(speed_parts(self.table, path, lengths)),
            "accuracy": list(accuracy_parts(self.verification, path)),
        }

    @property
    def tradeoff(self) -> Tradeoff | None:
        """What memory brings and costs the bundle's model."""
        return tradeoff(self.table, self.bundle.path) if self.table else None

    @property
    def own_row(self) -> Row | None:
        """The call that the headline speaks of: at the bundle's M, or at the nearest that was timed."""
        found = self.tradeoff
        timed = found.timed if found else []
        own = self.bundle.manifest.mem_len
        return min(timed, key=lambda n: abs(n.mem_len - own)).row if timed else None


def sentences(contents: Contents) -> list[str]:
    """The headline: what was found, most important first."""
    found, row, table = contents.tradeoff, contents.own_row, contents.table
    told = [headline.verified(contents.verification)] if contents.verification else []
    if row and table:
        told.append(headline.fast(row, table.base))
    if found:
        told += headline.steps(found, contents.bundle.manifest.mem_len)
    if table and table.missing:
        told.append(f"The benchmark is unfinished: {table.missing} of its figures are still missing.")
    return [clean(s) for s in told]


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
        "verdict": _verdict(verification),
        "sentences": sentences(contents),
        "tiles": _tiles(contents),
        "parts": parts,
        "memory_grid": tradeoff_grid(found) if found and several else None,
        "memory_model": clean(found.target) if found else "",
        "bench_grid": bench_grid(table) if table and table.rows else None,
        "bench_facts": _conditions(table) if table else "",
        "verification": _verification_facts(verification) if verification else {},
        "notes": [clean(n) for n in verification.notes] if verification else [],
        "segments_grid": segments_grid(verification) if verification else None,
        "model": facts.model_facts(inspected),
        "bundle": facts.bundle_facts(bundle, inspected),
        "graphs": facts.graphs_grid(inspected),
        "files": facts.files_grid(bundle),
        "costs": facts.costs_grid(inspected),
        "machine": facts.machine_facts(table.machine, table.threads) if table else {},
        "made_with": facts.versions({"versions": dict(bundle.manifest.versions)}),
        "commands": _commands(contents),
        "unmeasured": _unmeasured(contents),
    }


def _verdict(report: Report | None) -> tuple[str, str, str]:
    """A name for the style, a sign and a word."""
    if report is None:
        return "unknown", "?", "Not verified"
    return ("passed", "✓", "Verified") if report.passed else ("failed", "✗", "Out of tolerance")


def _tiles(contents: Contents) -> list[tuple[str, str, str]]:
    """The most important numbers: value, unit, and what it is."""
    report, row, table, found = contents.verification, contents.own_row, contents.table, contents.tradeoff
    tiles = []
    if report:
        limit = report.limits.log_probs
        about = f"largest error; tolerance {error(limit)}" if limit else "largest error"
        tiles.append((error(report.max_abs), "" if report.head.startswith("features") else "nats", about))
    if row and table:
        per = "token" if row.segment_len == 1 and row.batch_size == 1 else "call"
        tiles.append((ms(row.p50_ms), f"ms per {per}", f"median at M = {row.mem_len}, L = {row.segment_len}"))
        if row.ratio and row.backend != table.base:
            spread = f"{times(row.ratio.low)} to {times(row.ratio.high)} from round to round"
            tiles.append((times(row.ratio.median), f"× {clean(table.base)}", f"as fast; {spread}"))
    length = found.at(contents.bundle.manifest.mem_len) if found else None
    if found and length and length.quality:
        text = next(iter(length.quality))
        value = found.value(length, text)
        tiles.append((f"{value:.{found.unit.digits}f}", found.unit.name, f"on {clean(text)} at M = {length.mem_len}"))
    state = sum(s.nbytes for s in contents.bundle.manifest.states)
    number, _, unit = size(state).partition(" ")
    tiles.append((number, unit, f"of memory per stream at M = {contents.bundle.manifest.mem_len}"))
    return tiles


def _conditions(table: Table) -> str:
    threads = f"{table.threads} thread{'s' if table.threads > 1 else ''}"
    heads = " and ".join(dict.fromkeys(clean(row.head) for row in table.rows))
    return f"{table.rounds} rounds in turn, each candidate in a process of its own with {threads}; head {heads}."


def _verification_facts(report: Report) -> dict[str, str]:
    limits, perplexities = report.limits, report.perplexities
    found = {
        "Compared": f"{len(report.segments)} segments of {report.segment_len} tokens, {_streams(report.batch_size)}",
        "Tokens": report.source,
        "Judge": f"{report.checkpoint}, in eager float32",
        "Run by": f"{report.backend}, layout {report.layout}, {report.precision}, M = {report.mem_len}",
        "Head": report.head,
        "Largest error": f"{error(report.max_abs)} (tolerance {error(limits.log_probs)})"
        if limits.log_probs
        else error(report.max_abs),
        "Trend": report.trend.describe(),
    }
    agree = [s.measures.top1 for s in report.segments if s.measures.top1 is not None]
    if agree:
        found["Best token"] = f"the same at {min(agree):.1%} of positions or more (tolerance {limits.top1:.0%})"
    if perplexities and report.perplexity_difference is not None:
        judged = f"tolerance {error(limits.perplexity)}" if report.real else "not judged on random tokens"
        found["Perplexity"] = (
            f"{perplexities[0]:.6g}, the trained model's {perplexities[1]:.6g}: "
            f"{error(report.perplexity_difference)} apart, relative ({judged})"
        )
    if report.noise:
        found["The judge's own rounding"] = f"{error(report.noise.log_probs)} between float32 and float64"
    return {name: clean(value) for name, value in found.items()}


def _streams(n: int) -> str:
    return "1 stream" if n == 1 else f"{n} streams"


def _commands(contents: Contents) -> list[tuple[str, str]]:
    path, table = contents.bundle.path, contents.table
    bench = clean(table.command) if table and table.command else bench_command(path, contents.mem_lens)
    return [
        ("Install what measures and reports", "pip install 'txl-export[cpu,export,report]'"),
        ("Export", export_command(contents.bundle)),
        ("Look at it", command("inspect", path)),
        ("Verify", verify_command(path, contents.verification)),
        ("Time", bench),
        ("Report", report_command(path)),
    ]


def _unmeasured(contents: Contents) -> list[str]:
    """What a reader might take for measured and is not."""
    table, report, m = contents.table, contents.verification, contents.bundle.manifest
    told: list[str] = []
    if report:
        others = [h for h in m.heads if h != report.head]
        if others:
            told.append(f"Only head {report.head} was compared with the trained model, not {', '.join(others)}.")
        told += ["The tokens were random: perplexity on real text was not compared."] * (not report.real)
        told.append("Verification says that the bundle gives the trained model's numbers, not how good these are.")
    if table and table.rows:
        told += _untimed(table, m.layout, m.mem_len)
    told.append("Nothing here was run on a GPU or in half precision.")
    return [clean(t) for t in told]


def _untimed(table: Table, layout: str, mem_len: int) -> Sequence[str]:
    streams = max(row.batch_size for row in table.rows)
    told = [
        "Times are of one machine, the one named here; on another, measure again.",
        "Calls were timed one after another: nothing is said of requests that arrive while others run.",
        f"Calls of more than {_streams(streams)} were not timed.",
    ]
    told += [f"Layout {layout}, which the bundle has, was not timed."] * (layout not in {r.layout for r in table.rows})
    told += [f"M = {mem_len}, which the bundle has, was not timed."] * (mem_len not in {r.mem_len for r in table.rows})
    told += ["The limit of the machine was not measured."] * all(row.limit is None for row in table.rows)
    return told
