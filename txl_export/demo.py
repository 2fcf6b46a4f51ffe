"""`make demo`: the whole path on the shipped model, each step with the command that does the same."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from txl_export.cli._output import console as make_console
from txl_export.cli._output import long_progress, progress
from txl_export.errors import TxlError
from txl_export.files import write_json

if TYPE_CHECKING:
    from rich.console import Console

MODEL = Path("models/stdlib-bytes")
BUNDLE = Path("engines/stdlib-bytes")
RESULTS = Path("engines/demo")
MEM_LEN = 256
BENCH_MEM_LENS = (64, 256, 1024)
# A held-out module: the model never saw it.
TEXT = Path(argparse.__file__)


def main() -> int:
    """Export, verify, time and sample; returns the exit code."""
    console = make_console(markup=True)
    started = time.monotonic()
    try:
        passed = _run(console)
    except TxlError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    console.print(f"\nDone in {time.monotonic() - started:.0f} s. The bundle is in [bold]{BUNDLE}[/], the figures in "
                  f"[bold]{RESULTS}[/] (verify.json, bench.json).")  # fmt: skip
    return 0 if passed else 1


def _run(console: Console) -> bool:
    if not MODEL.is_dir():
        raise TxlError(f"{MODEL} is not here: run the demo in the folder of the repository")
    _export(console)
    passed = _verify(console)
    _sample(console)
    _bench(console)
    return passed


def _step(console: Console, title: str, command: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]\n[dim]$ txl-export {command}[/]", highlight=False)


def _export(console: Console) -> None:
    import txl_export as txl

    _step(console, "1. Export", f"export {MODEL} -o {BUNDLE} --mem-len {MEM_LEN} --head log_probs,log_probs@last")
    heads = ("log_probs", "log_probs@last")
    with progress() as report:
        bundle = txl.export(txl.load_checkpoint(MODEL), BUNDLE, mem_len=MEM_LEN, head=heads, progress=report)
    m = bundle.manifest
    size = sum(f["bytes"] for f in m.files.values()) / 1e6
    console.print(f"  {len(m.graphs)} graphs over one set of weights, {size:.1f} MB; memory in and out: "
                  f"{m.states[0].input} ... {m.states[-1].output}")  # fmt: skip


def _verify(console: Console) -> bool:
    import txl_export as txl
    from txl_export.verification import render

    _step(console, "2. Verify against the eager model, on a module that it never saw", f"verify {BUNDLE} --text {TEXT}")
    with progress() as steps:
        report = txl.verify(BUNDLE, text=TEXT.read_bytes(), progress=lambda done, total: steps("segments", done, total))
    render(report, console)
    write_json(RESULTS / "verify.json", report.to_dict())
    return report.passed


def _sample(console: Console) -> None:
    import txl_export as txl

    prompt = "def parse_args(self, args=None, namespace=None):"
    _step(
        console,
        "3. Let it write",
        f"generate {BUNDLE} --prompt {prompt!r} --max-new-tokens 160 --temperature 0.6 --seed 1",
    )
    engine = txl.Engine.load(BUNDLE)
    assert engine.info.vocab is not None
    ids = engine.info.vocab.encode(prompt.encode())
    new = engine.session().generate(ids, 160, temperature=0.6, seed=1)
    text = engine.info.vocab.decode(new).decode("utf-8", errors="replace")
    console.print(prompt + text, style="green", markup=False, highlight=False)


def _bench(console: Console) -> None:
    import txl_export as txl
    from txl_export.benchmarking import render

    lens = ",".join(map(str, BENCH_MEM_LENS))
    _step(console, "4. Time it against eager at several memory lengths", f"bench {BUNDLE} --mem-lens {lens} --rounds 3")
    with long_progress() as (report, _):
        table = txl.bench([BUNDLE], mem_lens=BENCH_MEM_LENS, rounds=3, progress=report)
    render(table, console)
    write_json(RESULTS / "bench.json", table.to_dict())


if __name__ == "__main__":
    sys.exit(main())
