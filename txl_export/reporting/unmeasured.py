"""What a reader might take for measured and is not."""

from __future__ import annotations

from collections.abc import Sequence

from txl_export.benchmarking.table import Table
from txl_export.reporting.contents import Contents
from txl_export.reporting.words import clean, streams


def unmeasured(contents: Contents) -> list[str]:
    """Sentences for the end of a report."""
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
    most = max(row.batch_size for row in table.rows)
    told = [
        "Times are of one machine, the one named here; on another, measure again.",
        "Calls were timed one after another: nothing is said of requests that arrive while others run.",
        f"Calls of more than {streams(most)} were not timed.",
    ]
    told += [f"Layout {layout}, which the bundle has, was not timed."] * (layout not in {r.layout for r in table.rows})
    told += [f"M = {mem_len}, which the bundle has, was not timed."] * (mem_len not in {r.mem_len for r in table.rows})
    told += ["The limit of the machine was not measured."] * all(row.limit is None for row in table.rows)
    return told
