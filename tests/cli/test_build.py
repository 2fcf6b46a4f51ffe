from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import txl_export
from tests.building.conftest import contents, needs_rtx
from tests.cli.conftest import Run
from txl_export.building import BATCH
from txl_export.bundle import Bundle
from txl_export.cli.build import BATCH as CLI_BATCH


@pytest.fixture(scope="session")
def built(run: Run, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A bundle with engines, and what `build --json` answered."""
    copy = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("built") / "kv"))
    result = run("build", copy, "--backend", "tensorrt-rtx", "--compute-capability", "sm89,sm80", "--json")
    assert result.exit_code == 0, result.output
    return copy, result


@needs_rtx
def test_json_says_what_was_built(built: tuple[Path, Result]):
    path, result = built
    said, m = json.loads(result.stdout), Bundle.open(path).manifest
    assert result.stderr == ""
    assert (said["backend"], said["for"]) == ("tensorrt-rtx", "sm80 (A100, A30), sm89 (RTX 40, L4, L40)")
    assert said["version"] == m.engines[0].version
    for told, graph in zip(said["engines"], m.graphs, strict=True):
        assert (told["graph"], told["head"], told["segment"]) == (graph.file, "log_probs", str(graph.segment))
        assert told["bytes"] == (path / told["file"]).stat().st_size and told["new"] is True
        assert told["precision"] == "fp32" and told["profiles"]["positions"] == {"min": [1], "opt": [1], "max": [8]}


@needs_rtx
def test_the_table_says_what_for_and_how_large(run: Run, built: tuple[Path, Result]):
    result = run("build", built[0], "--backend", "tensorrt-rtx", "--compute-capability", "sm80,sm89")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    title = next(line for line in lines if line.startswith("tensorrt-rtx"))
    assert "for sm80 (A100, A30), sm89 (RTX 40, L4, L40)" in title and "*.tensorrt-rtx.sm80-sm89.engine" in title
    row = next(line for line in lines if "log_probs.L8.onnx" in line).split()
    assert row[:5] == ["log_probs.L8.onnx", "log_probs", "8", "1:1:8", "fp32"]
    assert row[-3:] == ["up", "to", "date"] and row[6] == "MB"


@needs_rtx
def test_inspect_shows_engines(run: Run, built: tuple[Path, Result]):
    out = run("inspect", built[0]).stdout
    assert "for sm80 (A100, A30), sm89 (RTX 40, L4, L40)" in out and out.count("1:1:8") == 2
    found = json.loads(run("inspect", built[0], "--json").stdout)["engines"]
    told = {e["file"]: e for e in json.loads(built[1].stdout)["engines"]}
    assert {e["file"]: e | {"new": True} for e in found} == told


@needs_rtx
def test_a_truncated_engine_is_one_line_and_the_next_build_mends_it(
    run: Run, built: tuple[Path, Result], tmp_path: Path
):
    copy = Path(shutil.copytree(built[0], tmp_path / "b"))
    file = copy / Bundle.open(copy).manifest.engines[0].file
    file.write_bytes(file.read_bytes()[:1000])
    result = run("inspect", copy)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    command = f"txl-export build {copy} --backend tensorrt-rtx --batch 1:1:8 --compute-capability sm80,sm89"
    assert result.stderr.endswith(f"truncated or edited; build again: {command}\n")
    assert run(*command.split()[1:]).exit_code == 0
    assert run("inspect", copy).exit_code == 0


@needs_rtx
def test_warnings_stand_beside_the_answer(run: Run, built: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch):
    real = txl_export.build

    def build(bundle: Path, **options: Any) -> object:
        for line in ("it is [slow]", "it is [slow]"):
            options["warn"](line)
        return real(bundle, **options)

    monkeypatch.setattr(txl_export, "build", build)
    result = run("build", built[0], "--backend", "tensorrt-rtx", "--compute-capability", "sm80,sm89", "--json")
    assert result.stderr == "warning: it is [slow]\n"
    assert json.loads(result.stdout)["engines"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the API is called with; it then fails."""
    seen: dict[str, Any] = {}

    def build(bundle: Path, **options: Any) -> None:
        seen.update(options, bundle=bundle)
        options["warn"]("a [line]")
        options["warn"]("a [line]")
        raise txl_export.BuildError("that is all")

    monkeypatch.setattr(txl_export, "build", build)
    return seen


def test_options_reach_the_api(run: Run, asked: dict[str, Any]):
    sizes = ("--workspace", "2GiB", "--opt-level", 4, "--batch", "1:2:4", "--timing-cache", "t")
    result = run(
        "build", "b", "--backend", "tensorrt-rtx", "--compute-capability", "80, sm89", *sizes, "--tf32", "--force"
    )
    assert (result.exit_code, result.stderr) == (2, "error: that is all\n")
    for name in ("progress", "warn"):
        assert callable(asked.pop(name))
    assert asked == {
        "bundle": Path("b"), "backend": "tensorrt-rtx", "compute_capabilities": ("80", "sm89"), "workspace": 2 << 30,
        "opt_level": 4, "batch": "1:2:4", "timing_cache": Path("t"), "tf32": True, "force": True,
    }  # fmt: skip


def test_defaults_are_the_apis(run: Run, asked: dict[str, Any]):
    run("build", "b")
    expected = {"backend": "tensorrt", "compute_capabilities": (), "workspace": None, "opt_level": None}
    assert CLI_BATCH == BATCH
    assert {k: asked[k] for k in expected} == expected
    assert (asked["batch"], asked["timing_cache"], asked["tf32"], asked["force"]) == (BATCH, None, False, False)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--batch", "8:1:1"), 2, "does not rise"),
        (("--batch", "many"), 2, "write MIN:OPT:MAX"),
        (("--batch", "5000"), 2, "at most 4096 streams"),
        (("--workspace", "much"), 2, "'much' is no size: write 512MiB or 2GiB"),
        (("--opt-level", "9"), 2, "opt-level"),
        (("--backend", "onnxruntime"), 2, "builds no engines"),
        (("--backend", "tensorrt-rtx", "--timing-cache", "t"), 2, "keeps no timings"),
        (("--compute-capability", "ada"), 2, "compute capability 'ada'"),
    ],
)
def test_what_cannot_be_had_is_one_line(run: Run, bundle: Path, options: tuple[str, ...], code: int, says: str):
    before = contents(bundle)
    result = run("build", bundle, *options)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert says in result.stderr
    assert contents(bundle) == before


def test_what_is_no_bundle(run: Run, tmp_path: Path):
    result = run("build", tmp_path)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is no bundle" in result.stderr


@needs_rtx
@pytest.mark.parametrize("capability", ["sm75", "sm90"])
def test_gpus_that_it_cannot_build_for(run: Run, bundle: Path, capability: str):
    before = contents(bundle)
    result = run("build", bundle, "--backend", "tensorrt-rtx", "--compute-capability", capability)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert capability in result.stderr
    assert contents(bundle) == before
