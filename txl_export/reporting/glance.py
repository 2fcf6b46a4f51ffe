"""The top of a report: the verdict, the headline and the most important numbers."""

from __future__ import annotations

from txl_export.reporting import headline
from txl_export.reporting.contents import Contents
from txl_export.reporting.words import clean, error, ms, size, times
from txl_export.verification.report import Report


def sentences(contents: Contents) -> list[str]:
    """The headline: what was found, most important first."""
    found, row, table = contents.tradeoff, contents.own_row, contents.table
    told = [headline.verified(contents.verification)] if contents.verification else []
    if row and table:
        told.append(headline.fast(row, table.base))
    if found:
        told += headline.steps(found, contents.bundle.manifest.mem_len)
    return [clean(s) for s in told]


def verdict(report: Report | None) -> tuple[str, str, str]:
    """A name for the style, a sign and a word."""
    if report is None:
        return "unknown", "?", "Not verified"
    return ("passed", "✓", "Verified") if report.passed else ("failed", "✗", "Out of tolerance")


def tiles(contents: Contents) -> list[tuple[str, str, str]]:
    """The most important numbers: value, unit, and what it is."""
    report, row, table, found = contents.verification, contents.own_row, contents.table, contents.tradeoff
    shown = []
    if report:
        limit = report.limits.log_probs
        about = f"largest error; tolerance {error(limit)}" if limit else "largest error"
        shown.append((error(report.max_abs), "" if report.head.startswith("features") else "nats", about))
    if row and table:
        per = "token" if row.segment_len == 1 and row.batch_size == 1 else "call"
        shown.append((ms(row.p50_ms), f"ms per {per}", f"median at M = {row.mem_len}, L = {row.segment_len}"))
        if row.ratio and row.backend != table.base:
            spread = f"{times(row.ratio.low)} to {times(row.ratio.high)} from round to round"
            shown.append((times(row.ratio.median), f"× {clean(table.base)}", f"as fast; {spread}"))
    length = found.at(contents.bundle.manifest.mem_len) if found else None
    if found and length and length.quality:
        text = next(iter(length.quality))
        about = f"on {found.names[text]} at M = {length.mem_len}"
        shown.append((found.told(length, text), found.unit.name, about))
    state = sum(s.nbytes for s in contents.bundle.manifest.states)
    number, _, unit = size(state).partition(" ")
    shown.append((number, unit, f"of memory per stream at M = {contents.bundle.manifest.mem_len}"))
    return shown
