"""`RESULTS.md`: what `results.json` holds, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from benchmarks.matrix import Point
from benchmarks.peers import PEERS
from benchmarks.section import Gap, Section
from txl_export.benchmarking.limits import Limits
from txl_export.benchmarking.table import Row, Table, compare

# The sections in their order: title, and the command that makes it.
SECTIONS = {"quick": ("Quick", "make bench-quick"), "full": ("Full matrix", "make bench")}
OURS, RIVALS = ("ring", "kv"), ("huggingface", "plain-onnx")  # of ours the first that was measured is compared

_HEAD = """# Results

This file, `results.json` and the pictures are written by `make bench-quick` and `make bench`; don't edit them.
[README.md](README.md) says what each peer is and what makes the comparison fair. Times are medians of calls that
read L tokens of B streams with M tokens of memory each and return all log-probabilities. `A vs B` says how many
times as fast A is: the median of the rounds, and the lowest and highest of them in brackets. The limit is the
least that a call can take on the machine: its bytes read once, or its products computed, whichever takes longer.
"""


def render(sections: Mapping[str, Section], pictures: Mapping[str, Sequence[str]]) -> str:
    """The file.

    Args:
        sections: by name, as in `results.json`.
        pictures: by section and shape, as "quick/enwik8-base", the paths of pictures relative to the file.
    """
    parts = [_HEAD]
    for name, (title, command) in SECTIONS.items():
        if name in sections:
            shown = {shape: pictures.get(f"{name}/{shape}", ()) for shape in _shapes(sections[name].table)}
            parts.append(_section(title, command, sections[name], shown))
    return "\n".join(parts)


def _shapes(table: Table) -> list[str]:
    return list(dict.fromkeys(row.target for row in table.rows))


def _section(title: str, command: str, section: Section, pictures: Mapping[str, Sequence[str]]) -> str:
    lines = [f"## {title}", "", *_conditions(command, section), ""]
    for shape, shown in pictures.items():
        rows = [row for row in section.table.rows if row.target == shape]
        lines += [f"### {shape}", "", *_times(rows), ""]
        lines += [f"![Time per call of {shape}]({path})" for path in shown] + [""] * bool(shown)
        lines += [*_starts(rows), ""]
    for what, found in (
        ("Not yet measured (the same command goes on)", _points(section.left)),
        ("Left out", _gaps(section.skipped)),
        ("Failed", _gaps(section.failed)),
    ):
        if found:
            lines += [f"### {what}", "", *found, ""]
    return "\n".join(lines)


def _conditions(command: str, section: Section) -> Iterable[str]:
    table = section.table
    machine = table.machine
    calls = [len(samples) for row in table.rows for samples in row.rounds_ms]
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    yield f"- Command: `{command}`, given {section.minutes:g} minutes; last measured {section.date}"
    busy = f"{machine['load_average']:.1f}" if "load_average" in machine else "unknown"
    yield f"- Machine: {machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('system')}; load before: {busy}"
    if "limits" in machine:
        yield f"- Limits measured: {_limits(Limits.from_dict(machine['limits']))}"
    yield f"- Every peer: {table.threads} threads, its own process, one running at a time in turns"
    if calls:
        yield f"- Rounds: {table.rounds}, of {min(calls)} to {max(calls)} timed calls each"
    yield f"- Versions: {versions}"


def _limits(found: Limits) -> str:
    (size, largest) = found.read[-1]
    reading = f"{largest / 1e9:.1f} GB/s read from an array of {size / 1e9:.1f} GB"
    return f"{reading} (more from smaller ones), {found.flop_rate / 1e9:,.0f} GFLOP/s in matrix products"


def _times(rows: Sequence[Row]) -> Iterable[str]:
    """One line per point: every peer's median, ours against the rivals, the limit."""
    peers = [peer for peer in PEERS if any(row.backend == peer for row in rows)]
    own = next((peer for peer in OURS if peer in peers), None)
    rivals = [rival for rival in RIVALS if rival in peers and own]
    limits = any(row.limit for row in rows)
    names = ["B", "L", "M", *(f"{peer} ms" for peer in peers), *(f"{own} vs {rival}" for rival in rivals)]
    names += ["limit ms", f"limit / {own or OURS[0]}"] if limits else []
    yield _line(names)
    yield _line(["--:"] * len(names))
    ordered = sorted(rows, key=_place)
    for place, group in groupby(ordered, key=_place):
        by_peer = {row.backend: row for row in group}
        ours = by_peer.get(own or "")
        cells = [*map(str, place)]
        cells += [_ms(by_peer[peer].p50_ms) if peer in by_peer else "–" for peer in peers]
        cells += [_against(ours, by_peer.get(rival)) for rival in rivals]
        yield _line(cells + (_limit(ours) if limits else []))


def _place(row: Row) -> tuple[int, int, int]:
    return row.batch_size, row.segment_len, row.mem_len


def _limit(ours: Row | None) -> list[str]:
    if ours is None or ours.limit is None or ours.limit_share is None:
        return ["–", "–"]
    return [f"{_ms(ours.limit.ms)} ({ours.limit.bound})", f"{100 * ours.limit_share:.0f} %"]


def _against(ours: Row | None, theirs: Row | None) -> str:
    if ours is None or theirs is None:
        return "–"
    ratio = compare(ours.rounds_ms, theirs.rounds_ms)
    return f"**{_ms(ratio.median)}×** ({_ms(ratio.low)}–{_ms(ratio.high)})"


def _starts(rows: Sequence[Row]) -> Iterable[str]:
    """What a process of each peer takes before it answers, and how much memory."""
    columns: dict[str, Callable[[Sequence[Row]], str]] = {
        "load s": lambda found: f"{np.median([row.load_ms for row in found]) / 1000:.1f}",
        "first answer s": lambda found: f"{np.median([row.first_ms for row in found]) / 1000:.1f}",
        "longest first answer s": lambda found: f"{max(row.first_ms for row in found) / 1000:.1f}",
        "largest process MB": lambda found: f"{max(row.peak_rss for row in found) / 1e6:,.0f}",
    }
    yield _line(["peer", "what it is", *columns])
    yield _line(["---", "---", *["--:"] * len(columns)])
    for peer, about in PEERS.items():
        found = [row for row in rows if row.backend == peer]
        if found:
            yield _line([peer, about.title, *(column(found) for column in columns.values())])


def _points(points: Sequence[Point]) -> list[str]:
    return [f"- {group}" for group in _grouped(points)]


def _gaps(gaps: Sequence[Gap]) -> list[str]:
    """One line per reason and peers."""
    lines = []
    for (reason, peers), group in groupby(gaps, key=lambda gap: (gap.reason, gap.peers)):
        points = "; ".join(_grouped([gap.point for gap in group]))
        lines.append(f"- {_escaped(points)} ({', '.join(peers)}): {_escaped(reason)}")
    return lines


def _grouped(points: Sequence[Point]) -> list[str]:
    """Points that differ in M only, told together."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for p in points:
        groups.setdefault((p.shape, p.segment_len, p.batch_size), []).append(p.mem_len)
    return [
        f"{shape}, B = {B}, L = {L}, M = {', '.join(map(str, sorted(lens)))}" for (shape, L, B), lens in groups.items()
    ]


def _ms(value: float) -> str:
    """Three digits, or whole numbers above a hundred."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(text: str) -> str:
    """Text of others, with nothing in it that Markdown would take for its own."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>|#" else c for c in " ".join(text.split()))
