"""`txl-export report`: one HTML file that says what a bundle is, whether it is right and what its memory costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txl_export.cli._options import INTS, examples, json_option, pretokenized_option
from txl_export.cli._output import long_progress, print_json
from txl_export.errors import InputError, ToleranceError
from txl_export.files import require_writable

if TYPE_CHECKING:
    from txl_export.benchmarking import Table
    from txl_export.reporting import Written
    from txl_export.verification import Report

T = TypeVar("T")

EXAMPLES = examples(
    "report engines/stdlib-bytes -o report.html",
    "report engines/stdlib-bytes -o report.html --text README.md --mem-lens 0,64,256,1024",
    "report engines/stdlib-bytes -o report.html --verify verify.json --bench bench.json --pictures pictures",
    "report engines/stdlib-bytes -o report.html --quick --no-bench",
)
_PATH = click.Path(path_type=Path)


@click.command(epilog=EXAMPLES)
@click.argument("bundle", metavar="BUNDLE", type=_PATH)
@click.option("-o", "--out", required=True, metavar="FILE.html", type=_PATH, help="The report.")
@click.option("--verify", "verify_file", metavar="FILE.json", type=_PATH, help="What verify --json printed; run else.")
@click.option("--bench", "bench_file", metavar="FILE.json", type=_PATH, help="What bench wrote as JSON; run else.")
@click.option("--no-verify", is_flag=True, help="Do not verify where --verify is not given.")
@click.option("--no-bench", is_flag=True, help="Do not time where --bench is not given.")
@click.option("--checkpoint", metavar="CKPT", type=_PATH, help="The judge; the bundle's own when not given.")
@click.option("--text", metavar="FILE", type=_PATH, help="Text to verify on, and to tell what each M is worth.")
@pretokenized_option
@click.option("--mem-lens", type=INTS, help="Memory lengths M to time; a quarter of the bundle's to four times else.")
@click.option("--threads", type=int, help="CPU threads of the benchmark; all cores when not given.")
@click.option("--quick", is_flag=True, help="Measure less: fewer segments, rounds and memory lengths.")
@click.option("--restart", is_flag=True, help="Time again instead of going on with FILE.bench.json.")
@click.option("--pictures", metavar="DIR", type=_PATH, help="Write the pictures here too, as SVG and PNG.")
@json_option
def command(
    bundle: Path,
    out: Path,
    verify_file: Path | None,
    bench_file: Path | None,
    no_verify: bool,
    no_bench: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write what a bundle is, whether it is right and what its memory costs, as one HTML file.

    Verifies and times the bundle, which takes minutes; with --verify and --bench it shows figures that are there.
    What it measures it also writes beside the report, FILE.verify.json and FILE.bench.json; interrupted, the same
    command goes on with the latter. The report loads nothing and runs no scripts.

    Exits with 1 when the bundle is out of tolerance; the report is written and says so.
    """
    require_writable(out, apart_from=filter(None, (verify_file, bench_file)))
    verification = None if verify_file is None else _verification(verify_file)
    table = None if bench_file is None else _table(bench_file)
    left_out = {"verify": no_verify, "bench": no_bench}

    from txl_export.reporting import report

    with long_progress() as (told, log):
        written = report(
            bundle,
            out,
            verification=verification,
            table=table,
            measure=tuple(name for name, leave in left_out.items() if not leave),
            progress=told,
            log=log,
            **options,
        )
    _print(written, as_json)
    if written.verification and not written.verification.passed:
        raise ToleranceError(written.verification.failure or "out of tolerance")


def _print(written: Written, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "report": str(written.path),
                "files": [str(f) for f in written.files],
                "passed": written.verification.passed if written.verification else None,
                "headline": list(written.sentences),
            }
        )
        return
    for sentence in written.sentences:
        click.echo(sentence)
    for file in (written.path, *written.files):
        click.echo(f"wrote {file}")


def _verification(path: Path) -> Report:
    from txl_export.verification import Report

    return _read(path, Report.from_dict)


def _table(path: Path) -> Table:
    from txl_export.benchmarking import Table

    return _read(path, Table.from_dict)


def _read(path: Path, from_dict: Callable[[Any], T]) -> T:
    from txl_export.files import read_json

    value = read_json(path, InputError)  # its errors name the file
    try:
        return from_dict(value)
    except InputError as e:
        raise InputError(f"{path}: {e}") from None
