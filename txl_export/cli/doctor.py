"""`txl-export doctor`: what this machine has, which backends work and what brings the others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txl_export.cli._options import examples, json_option
from txl_export.cli._output import is_terminal, print_json
from txl_export.errors import EnvironmentMismatch
from txl_export.units import si

if TYPE_CHECKING:
    from txl_export.diagnosis import Report
    from txl_export.diagnosis.machine import Machine
    from txl_export.diagnosis.packages import Found

EXAMPLES = examples("doctor", "doctor engines/stdlib-bytes", "doctor --json")
WIDTH = 100  # of lines that go to a file or a pipe


@click.command(epilog=EXAMPLES)
@click.argument("bundle", metavar="[BUNDLE]", required=False, type=click.Path(path_type=Path))
@json_option
def command(bundle: Path | None, as_json: bool) -> None:
    """Say what this machine has, which backends work on it, and what brings the others.

    With BUNDLE which backends run that one. Exits with 3 where none works. No engine is loaded.
    """
    from txl_export.diagnosis import doctor

    report = doctor(bundle)
    if as_json:
        print_json(report.to_dict())
    else:
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else WIDTH
        for line in lines(report, width):
            click.echo(line)
    if not report.works:
        here = f"runs {report.bundle} on" if bundle else "works on"
        raise EnvironmentMismatch(
            f"no backend {here} this machine: pip install 'txl-export[cpu]' to run bundles on the CPU, "
            "'txl-export[gpu]' on an NVIDIA GPU"
        )


def lines(report: Report, width: int) -> Iterator[str]:
    """The report as text; what is longer than a line ends in dots, but for commands, which are there to copy."""
    yield from _section("This machine", _machine(report.machine), width)
    yield from _section("Packages", (row for p in report.packages for row in _package(p)), width)
    title = "Backends" if report.bundle is None else f"Backends for {report.bundle}"
    states = ((b.name, f"{'yes' if b.works else 'no':<3}  {b.why}") for b in report.backends)
    yield from _section(title, states, width)
    commands = {c: [b.name for b in report.backends if c in b.commands] for b in report.backends for c in b.commands}
    if commands:
        yield from _section("What brings the others", ((", ".join(n), c) for c, n in commands.items()), None)
    if report.taken:
        yield _printable(f"{report.bundle} runs on {report.taken} when no backend is named")


def _section(title: str, rows: Iterable[tuple[str, str]], width: int | None) -> Iterator[str]:
    rows = list(rows)
    longest = max(len(name) for name, _ in rows)
    yield _printable(title)
    for name, text in rows:
        line = _printable(f"  {name:<{longest}}  {text}".rstrip())
        yield line if width is None or len(line) <= width else line[: width - 3] + "..."
    yield ""


def _machine(m: Machine) -> Iterator[tuple[str, str]]:
    threads = f" ({m.logical_cpus} threads)" if m.logical_cpus > m.cores else ""
    memory = f", {si(m.memory, 'B')} of memory" if m.memory else ""
    yield "system", f"{m.system}, Python {m.python}"
    yield "CPU", f"{m.cpu}, {m.cores} core{'s' * (m.cores != 1)}{threads}{memory}"
    for gpu in m.gpus:
        yield "GPU", f"{gpu.name}, {gpu.capability}, {si(gpu.memory, 'B')} of memory{', a part of it' * gpu.mig}"
    if m.gpu_problem:
        yield "GPU", m.gpu_problem
    if m.cuda:
        version = f"{m.driver}, " if m.driver else ""
        yield "driver", f"{version}for CUDA up to {m.cuda[0]}.{m.cuda[1]}"


def _package(p: Found) -> Iterator[tuple[str, str]]:
    if p.version is None:
        yield p.name, "not installed"
        return
    names = " and ".join(n for n in p.distributions if n != p.name)
    yield p.name, " ".join(t for t in (p.version, names and f"({names})", p.problem or _details(p)) if t)
    if "cuda_provider" in p.details:
        why = p.details["cuda_provider"]
        yield f"{p.name}, CUDA", f"does not load: {why}" if why else "loads"


def _details(p: Found) -> str:
    """What else a package says: providers of ONNX Runtime, the CUDA of PyTorch."""
    if "providers" in p.details:
        return f"with {', '.join(n.removesuffix('ExecutionProvider') for n in p.details['providers'])}"
    if "cuda" in p.details:
        return f"for CUDA {p.details['cuda']}" if p.details["cuda"] else "for CPUs"
    return ""


def _printable(line: str) -> str:
    """Names come from files and drivers: nothing in them may steer a terminal."""
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
