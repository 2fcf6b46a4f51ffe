"""The page of a run on a GPU, of made-up data."""

from __future__ import annotations

import pytest

from benchmarks.gpu import report, results
from benchmarks.gpu.plan import EAGER, NVIDIA_MODEL, OURS, OURS_DIRECT, full_cases
from benchmarks.gpu.results import Run, Timed
from txl_export.cost import call_cost
from txl_export.errors import InputError
from txl_export.named_configs import named_config
from txl_export.precision import PrecisionPolicy

HALF, NVIDIA = full_cases()[:2]
SINGLE = next(c for c in full_cases() if c.precision == "fp32" and c.mem_len == HALF.mem_len)


def timed(case, way, ms, n=1, batch=1, device=()) -> Timed:
    return Timed(case, way, n, batch, tuple(ms), tuple(device))


@pytest.fixture
def made_up() -> Run:
    return Run(
        about={"cpu": "a CPU", "gpu": "NVIDIA H200 (sm90)", "versions": {"tensorrt": "11.4"}},
        backend="tensorrt",
        date="2026-01-02",
        seconds=271.3,
        clocks={"before": "clocks.sm 1980 MHz", "after": ""},
        bandwidth=2e12,
        timed=(
            timed(HALF, OURS, [1.0, 1.0, 1.0, 2.0], device=[0.5, 0.5]),
            timed(HALF, OURS_DIRECT, [3.0]),
            timed(HALF, EAGER, [8.0]),
            timed(HALF, "torch.compile", [4.0]),
            timed(SINGLE, OURS, [2.0]),
            timed(NVIDIA, OURS, [6.0, 6.0], n=64, batch=8),
        ),
        built={HALF.name: [["1", 90_000_000, 21.0, "fp16 + fp32"]]},
        verified={HALF.name: {"passed": False, "max_abs": 0.03, "segments": 29, "wraps": 2.32}},
        missing=((f"ours of {SINGLE.name}", "the time was up\nafter 1 results"),),
    )


def lines(run: Run, start: str) -> list[str]:
    return [line for line in report.page(run).splitlines() if line.startswith(start)]


def test_a_row_has_its_floor_and_its_ratio(made_up):
    config, dialect = named_config(HALF.model)
    window = dialect.window(config, 1600)
    cost = call_cost(config, 1600, 1, 1, window=window, policy=PrecisionPolicy("fp16"))
    floor = 1000 * cost.bytes_read / 2e12
    own = next(line for line in lines(made_up, "| 1 | 1 |") if OURS in line)
    cells = [c.strip() for c in own.strip("|").split("|")]
    assert cells[2:6] == [OURS, "1.00", "1.70", "0.500"]
    assert cells[6:8] == [f"{floor:.3f}", f"{100 * floor / 0.5:.0f} %"]
    assert cells[8:] == ["800", "8.00"]


def test_single_precision_is_compared_with_eager_in_half(made_up):
    page = report.page(made_up)
    assert "× eager fp16" in page
    single = page.split(f"## {SINGLE.model}, fp32")[1]
    assert next(x for x in single.splitlines() if OURS in x).endswith("| 500 | 4.00 |")


def test_the_reading_takes_the_fastest_other_way(made_up):
    assert "between 0.25 and 0.25 times what the fastest way of PyTorch" in report.page(made_up)
    assert "(against torch.compile)" in report.page(made_up)


def test_the_conditions_and_what_is_missing_are_told(made_up):
    page = report.page(made_up)
    assert "on NVIDIA H200 (sm90), a CPU, 2026-01-02, in 271 s; bundles run on `tensorrt`. tensorrt 11.4." in page
    assert "Clocks before: clocks.sm 1980 MHz." in page and "Clocks after: not told" in page
    assert "**Out of tolerance** against the reference in fp32 over 29 segments (2.3 times the memory)" in page
    assert "Not verified in this run." in page
    assert f"- ours of {SINGLE.name}: the time was up after 1 results" in page
    assert "2,000 GB/s" in page


def test_the_form_of_nvidias_table(made_up):
    page = report.page(made_up).split("## In the form of NVIDIA's published table")[1]
    assert "| batch size | sequence length | memory length | throughput avg (tok/s) | latency avg (ms) |" in page
    assert "| 8 | 64 | 640 | 85,333 | 6.00 | 6.00 | 6.00 | 6.00 |" in page
    assert "| A100 | base | 64 | 640 | 9.2 | 9.7 | 19.1 |" in page
    assert f"## {NVIDIA_MODEL}" not in report.page(made_up)  # its only table is this one


def test_a_dry_run_claims_nothing(made_up):
    import dataclasses

    page = report.page(dataclasses.replace(made_up, dry=True))
    assert "no number here is a figure" in page and "GB/s" not in page
    assert "fastest way of PyTorch" not in page


def test_a_run_without_anything_is_a_page(made_up):
    page = report.page(Run({}, "tensorrt", "2026-01-02", 3.0, missing=(("build of x", "no"),)))
    assert "no GPU" in page and "- build of x: no" in page and "| L |" not in page


def test_results_come_back_from_their_file(made_up, tmp_path):
    results.write(tmp_path / "gpu.json", made_up)
    assert results.read(tmp_path / "gpu.json") == made_up
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="holds no GPU benchmark of this version"):
        results.read(tmp_path / "other.json")
