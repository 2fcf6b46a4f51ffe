"""`python -m benchmarks`: times this package beside its peers, and writes `benchmarks/RESULTS.md`."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path

import click

from benchmarks import pictures
from benchmarks.artefacts import versions
from benchmarks.campaign import BASE, Campaign, Plan
from benchmarks.matrix import QUICK_PEERS, full_matrix, quick_matrix
from benchmarks.peers import PEERS, require
from benchmarks.results import SECTIONS, render
from benchmarks.section import Section, read_sections, write_sections
from benchmarks.shapes import ROOT, SHAPES, open_shape
from txl_export.benchmarking import machine
from txl_export.benchmarking.store import Store
from txl_export.benchmarking.table import Table
from txl_export.benchmarking.workspace import workspace
from txl_export.cli._output import long_progress
from txl_export.errors import InputError, TxlError
from txl_export.files import require_writable, write_atomic

FOLDER = ROOT / "benchmarks"
_INTERRUPTED, _TERMINATED = 130, 143


@click.command()
@click.option("--quick", is_flag=True, help="A few points, without torch.compile.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Time to take: 60, or 15 with --quick.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="Turns of every process.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads of each; all cores when not given.")
@click.option("--restart", is_flag=True, help="Measure everything again.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), default=FOLDER, help="Folder of results.")
def command(quick: bool, minutes: float | None, rounds: int, threads: int | None, restart: bool, output: Path) -> None:
    """Time this package beside its peers, each in a process of its own.

    What is measured is kept: the same command goes on where an earlier one stopped.
    """
    if minutes is not None and not math.isfinite(minutes):
        raise InputError(f"--minutes is {minutes}, expected a number of minutes, such as 5")
    require_writable(output / "results.json")
    plan = _quick(minutes, rounds, threads) if quick else _full(minutes, rounds, threads)
    require(plan.peers)
    run(plan, output, restart)


def _quick(minutes: float | None, rounds: int, threads: int | None) -> Plan:
    points = tuple(quick_matrix())
    shapes = {name: open_shape(name) for name in dict.fromkeys(p.shape for p in points)}
    cores = threads or machine.physical_cores()
    return Plan("quick", points, shapes, QUICK_PEERS, rounds, cores, minutes or 15.0, build_first=True, again=True)


def _full(minutes: float | None, rounds: int, threads: int | None) -> Plan:
    shapes = {name: open_shape(name) for name in SHAPES}
    cores = threads or machine.physical_cores()
    points = tuple(full_matrix(SHAPES))
    return Plan("full", points, shapes, tuple(PEERS), rounds, cores, minutes or 60.0, build_first=False, again=False)


def run(plan: Plan, output: Path, restart: bool = False) -> None:
    """Work through a plan and write results.json, RESULTS.md and the pictures, whatever ends the work.

    Args:
        plan: what to measure.
        output: folder of the results; what else is in them stays.
        restart: measure again what is there already.

    Raises:
        InputError: there are results of another version or other conditions.
        ToleranceError: a peer gives other numbers than the reference.
        EnvironmentMismatch: something cannot be built or written.
    """
    sections = read_sections(output / "results.json")
    with workspace() as scratch, long_progress() as (show, say):
        campaign = Campaign(plan, _store(plan, output, restart), scratch, sections.get(plan.name), say, show)
        if (campaign.complete and plan.again) or restart:
            campaign = Campaign(plan, _store(plan, output, restart=True), scratch, None, say, show)
        try:
            campaign.run()
        finally:
            section = campaign.section()
            if section.table.rows:
                write(output, {**sections, plan.name: section})
    click.echo(f"{output / 'RESULTS.md'}, section {SECTIONS[plan.name][0]!r}: {_ending(section)}")


def _store(plan: Plan, output: Path, restart: bool) -> Store:
    """What is measured already."""
    described = machine.describe()
    blank = Table(
        rows=(),
        machine={**described, "versions": {**described["versions"], **versions()}},
        threads=plan.threads,
        rounds=plan.rounds,
        base=BASE,
        targets={name: shape.digest for name, shape in plan.shapes.items()},
        command=SECTIONS[plan.name][1],
    )
    return Store(blank, output / ".cache" / f"{plan.name}.json", restart)


def write(output: Path, sections: dict[str, Section]) -> None:
    """Write all sections, and the pictures of all."""
    write_sections(output / "results.json", sections)
    drawn: dict[str, list[str]] = {}
    for name, section in sections.items():
        drawn |= pictures.draw(name, section.table, output / "pictures")
    write_atomic(output / "RESULTS.md", render(sections, drawn).encode())


def _ending(section: Section) -> str:
    rows = section.table.rows
    done = len({(row.target, row.segment_len, row.mem_len, row.batch_size) for row in rows})
    if section.left:
        return f"{done} comparisons, {len(section.left)} still to be measured: the same command goes on"
    return f"{done} comparisons, all that fit; --restart measures them again"


def main() -> int:
    """Run the command; errors raised on purpose become one line and their exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        command(standalone_mode=False)
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except click.Abort:
        print("interrupted: what is measured is kept", file=sys.stderr)
        return _INTERRUPTED
    except TxlError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
