"""The report of a small bundle with planted figures: what it says, and that it is a sound page."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest

import txl_export as txl
from tests.reporting.conftest import MACHINE, Real, grid, read, row, table, verification
from txl_export.benchmarking.table import Ratio, Table
from txl_export.bundle import Bundle
from txl_export.cli import main
from txl_export.errors import BundleError, EnvironmentMismatch, InputError
from txl_export.files import to_json
from txl_export.reporting import default_lengths
from txl_export.verification import Finding, Report
from txl_export.verification.bisection.causes import Cause

SECTIONS = ["memory-length", "speed", "verification", "model", "bundle", "cost", "machine", "reproduce", "not-measured"]
VOID = {"meta", "link", "br", "hr", "img", "input"}
EVIL = "<script>alert('&')</script>\"'>"


class Page(HTMLParser):
    """A page taken apart; unbalanced tags are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attrs for name, attrs in self.tags if name == tag)


def own_table(real: Real, **options: Any) -> Table:
    """A benchmark of the bundle: eager and onnxruntime, two texts."""
    name = str(real.bundle)
    rows = grid(mem_lens=(6, 12, 24), batch_sizes=(1, 4), target=name, limit=0.5)
    quality = [*read({6: 1.5, 12: 1.4, 24: 1.45}, target=name), *read({6: 2.5, 12: 2.4, 24: 2.3}, "b.txt", target=name)]
    return table(rows, quality, **options)


@pytest.fixture(scope="module")
def written(real: Real, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything."""
    return txl.report(real.bundle, tmp_path_factory.mktemp("report") / "r.html", real.report, own_table(real)).path


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def made(real: Real, folder: Path, **options: Any) -> Page:
    options = {"measure": ()} | options
    return Page(txl.report(real.bundle, folder / "r.html", **options).path.read_text(encoding="utf-8"))


def test_every_section_is_there_and_in_the_contents(page: Page):
    assert [a["id"] for a in page.all("section")] == SECTIONS
    assert [a["href"] for a in page.all("a")] == [f"#{name}" for name in SECTIONS]
    assert len(list(page.all("h1"))) == 1
    labels = {a["aria-labelledby"] for a in page.all("section")}
    assert labels == {a["id"] for a in page.all("h2")}


def test_it_loads_nothing_and_runs_nothing(written: Path, page: Page):
    html = written.read_text(encoding="utf-8")
    assert not list(page.all("script")) and not list(page.all("img")) and not list(page.all("iframe"))
    for name, attrs in page.tags:
        for key, value in attrs.items():
            assert not key.startswith("on"), (name, key)
            if key in ("href", "src", "xlink:href"):
                assert value is not None and (value.startswith("#") or value == "data:,")
    assert all(found.startswith("#") for found in re.findall(r"url\(([^)]*)\)", html))
    assert "@import" not in html


def test_pictures_have_names_and_numbers_in_words(page: Page):
    figures = [a["id"] for a in page.all("figure")]
    assert figures == ["memory", "latency", "latency-4", "throughput", "drift", "layers"]
    assert [a["aria-labelledby"] for a in page.all("svg")] == [f"{name}-title" for name in figures]
    assert len(list(page.all("figcaption"))) == len(figures)
    assert "onnxruntime kv 1.46 ms at M = 6, 1.71 ms at M = 24" in page.text


def test_ids_are_unique(page: Page):
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))


def test_tables_tell_what_their_heads_belong_to(page: Page):
    assert len(list(page.all("caption"))) == len(list(page.all("table"))) == 6
    assert {a.get("scope") for a in page.all("th")} == {"col", "row"}
    assert sum(a.get("class") == "scroll" for a in page.all("div")) == 6  # a wide table scrolls alone


def test_the_headline_says_what_the_figures_say(real: Real, tmp_path: Path):
    name = str(real.bundle)
    rows = [row("eager", m, 8.0, target=name) for m in (6, 12, 24)]
    rows += [row(mem_len=m, ms=m / 6, target=name, ratio=Ratio(4.0, 3.5, 4.5), limit=0.5) for m in (6, 12, 24)]
    quality = read({6: 1.5, 12: 1.4, 24: 1.45}, target=name)
    told = txl.report(real.bundle, tmp_path / "r.html", real.report, table(rows, quality)).sentences
    assert told[0].startswith("The bundle gives the trained model's numbers: over 14 segments of 8 tokens (random ids")
    assert told[1:] == (
        "At M = 12 a call of 1 token takes 2.00 ms on onnxruntime kv (p99 2.20 ms), 4.0 times as fast as eager "
        "(3.5 to 4.5 from round to round). The machine's limit is 0.500 ms (reading): the call runs at 25% of it.",
        "Going from M = 6 to 12 saves 0.100 bits per byte; it costs 1.00 ms per call of 1 token and 6.00 kB of memory "
        "per stream.",
        "Going from M = 12 to 24 loses 0.050 bits per byte; it costs 2.00 ms per call of 1 token and 12.0 kB of memory "
        "per stream.",
        "Of the lengths measured, M = 12 reads the text best (1.400 bits per byte): longer memory, up to 24, does not "
        "help.",
    )


def test_a_cost_within_the_spread_says_so(real: Real, tmp_path: Path):
    name = str(real.bundle)
    rows = [row(mem_len=6, ms=2.0, target=name), row(mem_len=12, ms=2.1, target=name)]
    told = txl.report(
        real.bundle, tmp_path / "r.html", table=table(rows, read({6: 1.5, 12: 1.4}, target=name)), measure=()
    ).sentences
    assert "costs 0.100 ms per call of 1 token (within the spread of the rounds)" in told[1]


def test_without_quality_it_tells_how_time_grows(real: Real, tmp_path: Path):
    rows = [row(mem_len=m, ms=m / 6, target=str(real.bundle)) for m in (6, 12, 24)]
    told = txl.report(real.bundle, tmp_path / "r.html", table=table(rows), measure=()).sentences
    assert told[-1] == "From M = 6 to 24 a call of 1 token on onnxruntime kv goes from 1.00 to 4.00 ms."


def test_a_failed_verification_is_the_first_thing_it_says(real: Real, tmp_path: Path):
    bad = verification([1e-6] * 3 + [0.5], mem_len=12)
    page = made(real, tmp_path, verification=bad)
    assert "✗ Out of tolerance The bundle does not give the trained model's numbers: segment 3" in page.text
    assert "Verified" not in page.text


def test_it_says_where_accuracy_is_lost(real: Real, tmp_path: Path):
    lost = Finding(True, 3, 2, 128, "layers.1", cause=Cause("mask", "hidden <keys> are seen", "export again"))
    bad = dataclasses.replace(verification([1e-6] * 3 + [0.5], mem_len=12), bisect=lost)
    page = made(real, tmp_path, verification=bad)
    assert "Where accuracy is lost" in page.text
    assert "lost in the memory left by segment 2 (token 128), layer 1. Likely cause: mask: hidden <keys>" in page.text


def test_without_figures_there_are_no_pictures_but_commands(real: Real, tmp_path: Path):
    page = made(real, tmp_path)
    assert not list(page.all("svg")) and not list(page.all("figure"))
    assert "? Not verified" in page.text
    for verb in ("verify", "bench"):
        assert f"txl-export {verb}" in page.text
    assert "No calls were timed" in page.text


@pytest.mark.parametrize("full", [True, False])
def test_its_commands_parse(real: Real, tmp_path: Path, full: bool):
    command = "txl-export bench b --mem-lens 6,12 --text 'a b'"
    options = {"verification": real.report, "table": own_table(real, command=command)} if full else {}
    html = txl.report(real.bundle, tmp_path / "r.html", measure=(), **options).path.read_text(encoding="utf-8")
    lines = [re.sub("<[^>]*>", "", line) for line in re.findall(r"<pre><code>(.*?)</code>", html)]
    lines = [line for line in lines if line.startswith("txl-export ")]
    assert len(lines) >= 5
    for line in lines:
        program, verb, *args = shlex.split(line.replace("&#39;", "'").partition(" &gt; ")[0])
        found = main.get_command(click.Context(main), verb)
        assert program == "txl-export" and found is not None
        found.make_context(verb, args)  # raises UsageError


def test_names_of_users_are_text(real: Real, tmp_path: Path):
    rows = grid([EVIL, "eager"], (6, 12), batch_sizes=(1, 2), target=f"/x/{EVIL}")
    evil = table(rows, read({6: 1.5, 12: 1.4}, EVIL, target=f"/x/{EVIL}"), base=EVIL, command=EVIL)
    evil = dataclasses.replace(evil, machine=MACHINE | {"cpu": EVIL, "versions": {EVIL: EVIL}})
    judged = dataclasses.replace(real.report, notes=(EVIL,), source=EVIL, checkpoint=EVIL)
    page = made(real, tmp_path, table=evil, verification=judged)
    assert not list(page.all("script"))
    assert page.text.count("<script>alert('&')</script>") > 10
    assert all(not key.startswith("on") for _, attrs in page.tags for key in attrs)


def test_names_that_no_file_can_hold(real: Real, tmp_path: Path):
    rows = grid(["a\x00b\udcff\n", "eager"], (6, 12))
    assert "a b? kv" in made(real, tmp_path, table=table(rows)).text


def test_equal_figures_make_equal_bytes(real: Real, written: Path, tmp_path: Path):
    again = txl.report(real.bundle, tmp_path / "other.html", real.report, own_table(real))
    assert again.path.read_bytes() == written.read_bytes()


def test_figures_that_are_given_are_not_measured(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("txl_export.reporting.run.verify", lambda *a, **k: 1 / 0)
    monkeypatch.setattr("txl_export.benchmarking.bench", lambda *a, **k: 1 / 0)
    timed = table([row(target=str(real.bundle))])
    found = txl.report(real.bundle, tmp_path / "r.html", real.report, timed, pictures=tmp_path / "p")
    assert [f.name for f in tmp_path.iterdir() if f.is_file()] == ["r.html"]
    assert {f.name for f in found.files} == {
        f"{name}.{end}" for name in ("latency", "drift", "layers") for end in ("svg", "png")
    }
    assert all(f.is_file() and f.parent == tmp_path / "p" for f in found.files)


def test_what_is_measured_is_written_beside_it_and_serves_the_next_time(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, Any] = {}

    def bench(targets: Any, **options: Any) -> Table:
        asked.update(options, targets=targets)
        timed = table(grid(mem_lens=(6, 12, 24), target=str(real.bundle)))
        options["output"].write_text(to_json(timed.to_dict()))
        return timed

    monkeypatch.setattr("txl_export.benchmarking.bench", bench)
    monkeypatch.setattr(Bundle, "judge_path", tmp_path)  # as if it were there
    first = txl.report(real.bundle, tmp_path / "r.html", checkpoint=real.checkpoint, quick=True, threads=1)
    assert [f.name for f in first.files] == ["r.verify.json", "r.bench.json"]
    assert (asked["mem_lens"], asked["segment_lens"], asked["rounds"]) == ((6, 12, 24), [1, 8], 2)
    assert asked["threads"] == 1 and asked["backends"] == ("eager", "onnxruntime") and not asked["restart"]
    judged, timed = (json.loads(f.read_text()) for f in first.files)
    second = txl.report(real.bundle, tmp_path / "s.html", Report.from_dict(judged), Table.from_dict(timed))
    assert second.path.read_bytes() == first.path.read_bytes()


def test_a_bundle_whose_checkpoint_is_gone_is_timed_as_it_is(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, Any] = {}
    monkeypatch.setattr("txl_export.benchmarking.bench", lambda t, **k: asked.update(k) or own_table(real))
    txl.report(real.bundle, tmp_path / "r.html", real.report)
    assert (asked["mem_lens"], asked["backends"]) == ((12,), ("onnxruntime",))
    with pytest.raises(InputError, match="--checkpoint"):
        txl.report(real.bundle, tmp_path / "s.html")


def test_nothing_is_written_when_the_page_cannot_be_made(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("txl_export.reporting.run.render", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        txl.report(real.bundle, tmp_path / "r.html", real.report, own_table(real), pictures=tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_told_before_anything_is_measured(
    real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else object())
    monkeypatch.setattr("txl_export.reporting.run.verify", lambda *a, **k: 1 / 0)
    with pytest.raises(EnvironmentMismatch, match=rf"{package}.*txl-export\[report\]"):
        txl.report(real.bundle, tmp_path / "r.html")


def test_a_folder_is_no_report(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("txl_export.reporting.run.verify", lambda *a, **k: 1 / 0)
    with pytest.raises(InputError, match="is a folder"):
        txl.report(real.bundle, tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        txl.report(real.bundle, tmp_path / "r.html", text=tmp_path / "absent")
    with pytest.raises(InputError, match="'time', expected verify or bench"):
        txl.report(real.bundle, tmp_path / "r.html", measure=("time",))
    with pytest.raises(BundleError):
        txl.report(tmp_path, tmp_path / "r.html")


def test_a_verification_of_another_bundle_is_refused(real: Real, tmp_path: Path):
    with pytest.raises(InputError, match="with mem_len 99, this one has 12"):
        txl.report(real.bundle, tmp_path / "r.html", dataclasses.replace(real.report, mem_len=99))
    with pytest.raises(InputError, match="with layers 3, this one has 2"):
        txl.report(real.bundle, tmp_path / "r.html", verification([1e-6], mem_len=12, memory=(0.1, 0.1, 0.1)))


@pytest.mark.parametrize(
    "change",
    [{"rounds_ms": ()}, {"rounds_ms": ((),)}, {"rounds_ms": ((0.0,),)}, {"mem_len": "12"}, {"backend": 3}],
)
def test_a_damaged_benchmark_is_one_line(real: Real, tmp_path: Path, change: dict[str, Any]):
    damaged = table([dataclasses.replace(row(), **change)])
    with pytest.raises(InputError, match=r"the benchmark is damaged .*: run it again"):
        txl.report(real.bundle, tmp_path / "r.html", real.report, damaged)
    assert list(tmp_path.iterdir()) == []


def test_lengths_around_the_bundles():
    assert default_lengths(256) == (64, 128, 256, 512, 1024)
    assert default_lengths(256, quick=True) == (128, 256, 512)
    assert default_lengths(1) == (1, 2, 4)  # no memory at all is another question
    assert default_lengths(0) == (0, 64, 128, 256)


@pytest.mark.parametrize("name", ["manifest.json", "weights.bin"])
def test_the_report_does_not_replace_a_file_of_its_bundle(real: Real, name: str):
    before = (real.bundle / name).read_bytes()
    with pytest.raises(InputError, match="is read too"):
        txl.report(real.bundle, real.bundle / name, measure=())
    assert (real.bundle / name).read_bytes() == before


def test_pictures_that_have_no_place_are_refused_before_measuring(real: Real, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="takes files"):
        txl.report(real.bundle, tmp_path / "r.html", measure=("verify",), pictures=tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [5e-324, 1.7e308])
def test_errors_at_the_ends_of_what_floats_hold_are_drawn(real: Real, tmp_path: Path, error: float):
    segment = real.report.segments[0]
    planted = dataclasses.replace(segment, measures=dataclasses.replace(segment.measures, max_abs=error))
    report = dataclasses.replace(real.report, segments=(planted, *real.report.segments[1:]))
    assert "drift" in [a["id"] for a in made(real, tmp_path, verification=report).all("figure")]


def test_a_memory_in_place_is_told(exported):
    from txl_export.bundle import Bundle
    from txl_export.reporting.commands import export_command
    from txl_export.reporting.facts import bundle_facts, costs_grid, inspected

    bundle = Bundle.open(exported("stepping", "ring", (1, 8)).path)
    found = inspected(bundle, [12])
    facts = bundle_facts(bundle, found)
    assert facts["Memory holds"] == "keys and values, projected once and written in place (layout ring)"
    assert facts["Memory length M"] == "12 tokens, or fewer: each session chooses"
    assert facts["Rows of memory"] == "20 written round and round, and 7 behind them"
    assert [c for c in costs_grid(found).columns if "FLOPs" in c] == ["FLOPs, hidden", "FLOPs, ring"]
    more = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, rewind=3))
    assert "--rewind 3" in export_command(more) and "--rewind" not in export_command(bundle)
