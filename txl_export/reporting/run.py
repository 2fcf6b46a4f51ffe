"""`report`: measures what is not given, and writes one HTML file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from txl_export.benchmarking.notes import abilities, notes
from txl_export.benchmarking.table import Table
from txl_export.bundle import MANIFEST, Bundle, Manifest
from txl_export.checkpoints import Checkpoint
from txl_export.errors import InputError, missing_extra
from txl_export.files import require_writable, write_atomic, write_json
from txl_export.reporting.contents import Contents
from txl_export.reporting.glance import sentences
from txl_export.reporting.page import render
from txl_export.reporting.saving import save
from txl_export.reporting.sections import Picture
from txl_export.verification.report import Report
from txl_export.verification.run import verify

Progress = Callable[[str, float, float], None]

MEASURES = ("verify", "bench")
# Of a full and of a quick report: segments to verify, rounds of the benchmark, memory lengths relative to M.
_FULL, _QUICK = (64, 5, (0.25, 0.5, 1, 2, 4)), (16, 2, (0.5, 1, 2))
# Lengths for a bundle without memory.
_FROM_ZERO = (0, 64, 128, 256)


class Written(NamedTuple):
    """What `report` wrote and found.

    Attributes:
        path: the HTML file.
        files: what else was written: figures as JSON, pictures.
        sentences: the headline.
        verification: given or run; None where it was left out.
        table: likewise.
    """

    path: Path
    files: tuple[Path, ...]
    sentences: tuple[str, ...]
    verification: Report | None
    table: Table | None


def report(
    bundle: str | Path | Bundle,
    out: str | Path,
    verification: Report | None = None,
    table: Table | None = None,
    measure: Collection[str] = MEASURES,
    checkpoint: str | Path | Checkpoint | None = None,
    text: str | Path | None = None,
    pretokenized: bool = False,
    mem_lens: Sequence[int] | None = None,
    quick: bool = False,
    threads: int | None = None,
    restart: bool = False,
    pictures: str | Path | None = None,
    progress: Progress | None = None,
    log: Callable[[str], None] | None = None,
) -> Written:
    """Write what a bundle is, whether it is right, how fast it is and what its memory is worth, as one HTML file.

    The file holds its styles and pictures, runs no scripts and loads nothing. What is measured here is also
    written beside it, as `NAME.verify.json` and `NAME.bench.json`. The latter is kept step by step, as by `bench`:
    after an interruption the same call goes on with it.

    Args:
        bundle: the bundle, or its folder.
        out: the HTML file.
        verification: what `verify` gave for this bundle.
        table: what `bench` gave.
        measure: what to measure when it is not given: "verify", "bench", both or none.
        checkpoint: the judge; None for the one that the manifest names.
        text: a file that is verified on and whose quality is measured at every M; None for random tokens and none.
        pretokenized: its words are set apart by blanks already, whatever splits raw text for the bundle.
        mem_lens: memory lengths to time, tokens; None for a quarter of the bundle's M to four times M.
        quick: measure less: 16 segments, half of M to twice M, two rounds.
        threads: CPU threads of the benchmark; None for all cores.
        restart: write over `NAME.bench.json` instead of going on with it.
        pictures: folder for the pictures as SVG and PNG; None for none.
        progress: called with (what is being done, done, in all).
        log: called with a line for every step of the benchmark that is done.

    Returns:
        What was written, and the headline. A bundle out of tolerance is a result: `verification.passed` tells.

    Raises:
        InputError: figures that are of another bundle, or what `verify` and `bench` raise.
        BundleError, CheckpointError: a bundle or judge that cannot be read.
        EnvironmentMismatch: matplotlib or jinja2 is not installed, or a file cannot be written.
    """
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    page = Path(out)
    _check_beforehand(page, measure)
    own = [opened.path / name for name in (MANIFEST, *opened.manifest.files)]
    if pictures is not None:
        require_writable(Path(pictures) / "memory.svg")
    require_writable(page, apart_from=[*own, *([Path(text)] if text else [])])
    _check_fits(opened.manifest, verification)
    if table is not None:
        _check_table(table)
    words = None if text is None else _read(Path(text))
    lengths = tuple(mem_lens) if mem_lens else default_lengths(opened.manifest.mem_len, quick)
    made = []
    if verification is None and "verify" in measure:
        verification = _verify(opened, checkpoint, words, pretokenized, quick, progress)
        made.append(page.with_name(page.stem + ".verify.json"))
        write_json(made[-1], verification.to_dict())
    if table is None and "bench" in measure:
        made.append(page.with_name(page.stem + ".bench.json"))
        options = {
            "text": text,
            "pretokenized": pretokenized,
            "threads": threads,
            "output": made[-1],
            "restart": restart,
        }
        table = _bench(opened, lengths, quick, progress=progress, log=log, **options)
    shown = {row.mem_len for row in table.rows} if table else set()
    contents = Contents(opened, verification, table, tuple(sorted(shown)) or lengths)
    parts = contents.parts()
    html = render(contents, parts)
    drawn = [part for found in parts.values() for part in found if isinstance(part, Picture)]
    files = [file for part in drawn if pictures is not None for file in save(part.figure, Path(pictures) / part.name)]
    write_atomic(page, html)
    return Written(page, (*made, *files), tuple(sentences(contents)), verification, table)


def default_lengths(mem_len: int, quick: bool = False) -> tuple[int, ...]:
    """Memory lengths around M, from a quarter of it to four times."""
    shares = (_QUICK if quick else _FULL)[2]
    around = {round(mem_len * share) for share in shares}
    return tuple(sorted(around - {0})) if mem_len else _FROM_ZERO


def _check_beforehand(page: Path, measure: Collection[str]) -> None:
    """What would be a pity to find out after minutes of measuring."""
    for name in measure:
        if name not in MEASURES:
            raise InputError(f"measure holds {name!r}, expected {' or '.join(MEASURES)}")
    if page.is_dir():
        raise InputError(f"{page} is a folder: name the HTML file, such as {page / 'report.html'}")
    for package in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "report", "a report")


def _read(text: Path) -> bytes:
    try:
        return text.read_bytes()
    except OSError as e:
        raise InputError(f"{text} cannot be read ({e.strerror}): give a text file") from None


def _check_fits(m: Manifest, verification: Report | None) -> None:
    if verification is None:
        return
    ours = {"layout": m.layout, "precision": m.precision, "mem_len": m.mem_len, "layers": m.config.n_layer}
    theirs = {name: getattr(verification, name) for name in list(ours)[:3]}
    theirs["layers"] = len(verification.segments[0].memory)
    for name, value in ours.items():
        if theirs[name] != value:
            raise InputError(
                f"the verification is of a bundle with {name} {theirs[name]}, this one has {value}: verify this one"
            )


def _check_table(table: Table) -> None:
    """What a table may hold that no benchmark gives, before it ends in something worse than a line."""
    try:
        table.check()
        notes(table), abilities(table)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
        raise InputError(f"the benchmark is damaged ({type(e).__name__}: {e}): run it again") from None


def _verify(
    bundle: Bundle,
    checkpoint: str | Path | Checkpoint | None,
    text: bytes | None,
    pretokenized: bool,
    quick: bool,
    progress: Progress | None,
) -> Report:
    return verify(
        bundle,
        checkpoint,
        text=text,
        pretokenized=pretokenized,
        segments=(_QUICK if quick else _FULL)[0],
        bisect=True,  # a report of what is wrong says where
        progress=(lambda done, total: progress("comparing segments", done, total)) if progress else None,
    )


def _bench(bundle: Bundle, mem_lens: Sequence[int], quick: bool, **options: Any) -> Table:
    from txl_export.benchmarking import bench

    m = bundle.manifest
    # Without its checkpoint a bundle runs at the M that it holds only, and nothing is there to compare it with.
    alone = bundle.judge_path is None
    held = [M for M in mem_lens if m.mem_len > M and m.traits.in_place]
    shortest = min(g.segment.lo for g in m.graphs)
    return bench(
        [bundle],
        mem_lens=(*held, m.mem_len) if alone else mem_lens,
        segment_lens=sorted({shortest, m.segment_len}),
        backends=("onnxruntime",) if alone else ("eager", "onnxruntime"),
        rounds=(_QUICK if quick else _FULL)[1],
        **options,
    )
