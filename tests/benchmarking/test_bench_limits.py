"""What a call can take at least: rates between sizes, the cost behind each row, and rows beyond their limit."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from txl_export.benchmarking import bench, limits, rates, run
from txl_export.benchmarking.limits import Limits
from txl_export.benchmarking.process import Cost
from txl_export.benchmarking.table import Limit
from txl_export.config import ModelConfig
from txl_export.cost import call_cost
from txl_export.errors import EnvironmentMismatch

POPEN = subprocess.Popen  # which `traces` replaces
FOUND = Limits(((10**6, 1e9), (10**8, 3e9)), 4e9)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(run, "USUAL_TURN", run.Turn(seconds=0.0, least=5, most=9))
    monkeypatch.setattr(rates, "REPEAT_SECONDS", 0.0)
    monkeypatch.setattr(rates, "REPEATS", 1)


def test_bandwidth_lies_on_the_curve_and_is_flat_beyond():
    assert [FOUND.bandwidth(n) for n in (0, 10**5, 10**6, 10**7, 10**8, 10**9)] == pytest.approx(
        [1e9, 1e9, 1e9, 2e9, 3e9, 3e9]
    )


def test_the_longer_of_reading_and_computing_limits():
    reading, computing = FOUND.of(Cost(10**7, 10**6)), FOUND.of(Cost(10**5, 8 * 10**6))
    assert reading == Limit(10**7, 10**6, pytest.approx(2e9), 4e9)
    assert (reading.ms, reading.bound) == (pytest.approx(5.0), "reading")
    assert (computing.ms, computing.bound) == (pytest.approx(2.0), "arithmetic")


def test_the_fastest_matrix_product_counts():
    value = {
        "read": [{"bytes": 8, "bytes_per_second": 1.0}],
        "matmul": [{"flops_per_second": r} for r in (3.0, 5.0, 4.0)],
    }
    assert Limits.from_dict(value).flop_rate == 5.0


def test_every_row_has_the_limit_of_its_call_whatever_runs_it(hollow_bundle, stub_workers):
    stub_workers()
    table = bench(
        [hollow_bundle(segments=("1", "2", "1-2"))], segment_lens=(1, 2), batch_sizes=(3,), rounds=1, threads=1
    )
    config = ModelConfig(vocab_size=29, n_layer=2, n_head=2, d_model=16, d_head=6, d_inner=24, mem_len=6)
    for row in table.rows:
        cost = call_cost(config, 6, row.segment_len, 3)
        assert row.limit == Limit(cost.bytes_read, cost.total_flops, 1e9, 4e9)
        assert row.limit_share == pytest.approx(row.limit.ms / row.p50_ms)
    assert len({row.limit for row in table.rows}) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_every_way_to_read_and_multiply_works(threads):
    read, multiplied = rates.read_rates(1 << 16, threads), rates.matmul_rates(64, threads)
    assert {name.split()[0] for name in read} == set(multiplied) == {"numpy", "torch", "onnxruntime"}
    assert all(0 < rate < math.inf for rate in (*read.values(), *multiplied.values()))


def test_the_handwritten_graph_multiplies():
    a = np.random.default_rng(0).standard_normal((5, 7), dtype=np.float32)
    b = np.random.default_rng(1).standard_normal((7, 3), dtype=np.float32)
    np.testing.assert_allclose(rates._onnxruntime_product(a, b, 1)(), a @ b, rtol=1e-5)


def test_what_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert set(rates.matmul_rates(16, 1)) == {"numpy", "onnxruntime"}


def test_arrays_leave_the_machine_its_memory(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99999999 kB\nMemAvailable:  300000 kB\n")
    monkeypatch.setattr(rates, "_MEMINFO", meminfo)
    monkeypatch.setattr(rates, "MATMUL_SIZES", (16,))
    monkeypatch.setattr(rates, "read_rates", lambda n, threads: {"numpy max": 1.0, "torch sum": 2.0})
    found = rates.main(1)
    assert [p["bytes"] >> 20 for p in found["read"]] == [4, 16, 64]
    assert (found["read"][0]["by"], found["read"][0]["bytes_per_second"]) == ("torch sum", 2.0)


def test_a_failing_measurement_is_one_line(monkeypatch):
    monkeypatch.setattr(limits, "COMMAND", (sys.executable, "-c", "raise SystemExit('no memory at all')"))
    with pytest.raises(EnvironmentMismatch, match=r"\(exit code 1\): no memory at all$") as caught:
        limits.measure(1)
    assert "\n" not in str(caught.value)


def test_an_interruption_ends_the_measurement(monkeypatch, traces):
    def interrupt(process):
        raise KeyboardInterrupt

    monkeypatch.setattr(limits, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(POPEN, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        limits.measure(1)
    traces.assert_gone()


@pytest.mark.slow
def test_the_program_prints_what_limits_are_made_of():
    code = (
        "import json; from txl_export.benchmarking import rates\n"
        "rates.READ_MB, rates.MATMUL_SIZES, rates.REPEAT_SECONDS = (1, 2), (32,), 0.0\n"
        "print(json.dumps(rates.main(1)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = Limits.from_dict(json.loads(ended.stdout))
    assert [size for size, _ in found.read] == [1 << 20, 2 << 20]
    assert found.flop_rate > 0
