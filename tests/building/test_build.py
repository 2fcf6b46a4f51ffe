"""Real engines, built by tensorrt-rtx without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.building.conftest import contents, needs_rtx
from tests.graphs.test_heads import HEADS
from tests.helpers import random_checkpoint
from txl_export import export, load_checkpoint, named_config
from txl_export.building import build
from txl_export.bundle import Bundle
from txl_export.engines import Target
from txl_export.precision import PrecisionPolicy

pytestmark = needs_rtx

SHIPPED = Path("models/stdlib-bytes")


def test_every_graph_gets_an_engine(engines):
    m = engines.bundle.manifest
    assert [b.engine.graph for b in engines.engines] == [g.file for g in m.graphs]
    for b in engines.engines:
        e = b.engine
        assert b.new and e.package == "tensorrt-rtx" and e.version and e.target == Target()
        assert e.precision == "fp32" and e.products["fp32"] > 10 and not e.tf32 and e.batch == (1, 1, 8)
        assert e.graph_sha256 == m.files[e.graph]["sha256"]
        assert (engines.bundle.path / e.file).stat().st_size == b.bytes == m.files[e.file]["bytes"]
        names = {p.name for p in e.profiles}
        assert names == {t.name for t in m.inputs(b.graph)}


def test_the_bundle_opens_with_its_engines(engines):
    opened = Bundle.open(engines.bundle.path)
    assert opened.manifest == engines.bundle.manifest
    assert {p.name for p in engines.bundle.path.iterdir()} == {"manifest.json", *opened.manifest.files}


# What other tests export too: with `engines`, both layouts, all heads, a number of tokens and a range, two precisions.


@pytest.mark.parametrize(
    "model, layout, precision",
    [
        ("adaptive", "kv", "fp32"),
        ("plain", "hidden", "fp32"),
        ("adaptive", "hidden", "fp16"),
    ],
)
def test_every_head_builds(exported, tmp_path, model, layout, precision):
    path = shutil.copytree(exported(model, layout, ("1-8",), HEADS, precision).path, tmp_path / "heads")
    report = build(path, "tensorrt-rtx", batch=1)
    assert [b.graph.head for b in report.engines] == list(HEADS)
    assert {b.engine.precision for b in report.engines} == {precision}


HALF = [("paper", "kv", "fp16"), ("same_length", "hidden", "fp16"), ("same_length", "kv", "bf16")]


@pytest.mark.parametrize("model, layout, precision", HALF)
def test_half_precision_builds_and_is_found(exported, tmp_path, model, layout, precision):
    path = shutil.copytree(exported(model, layout, precision=precision).path, tmp_path / "half")
    products = build(path, "tensorrt-rtx").engines[0].engine.products
    assert products[precision] > products.get("fp32", 0)


def test_single_tokens_in_half_precision(typed):
    fp16 = build(typed("fp16", "kv", (1, 8), ("target",)), "tensorrt-rtx", compute_capabilities=["sm75"])
    assert [str(b.graph.segment) for b in fp16.engines] == ["1", "8"]
    bf16 = build(typed("bf16", "hidden", (1,), ("top_k@last",)), "tensorrt-rtx")
    assert bf16.engines[0].engine.precision.startswith("bf16")


@pytest.mark.parametrize(("precision", "heads"), [("fp16", ("log_probs",)), ("fp32", ("top_k@last",))])
def test_a_memory_that_is_written_in_place(typed, precision, heads):
    """Rows are as many as the manifest says, and each memory tensor is updated where it is; fp32 attends as one."""
    report = build(typed(precision, "ring", (1, 8), heads), "tensorrt-rtx", batch="1:2:4")
    m = report.bundle.manifest
    assert [str(b.graph.segment) for b in report.engines] == ["1", "8"] and m.rows == m.ring + 7
    for b in report.engines:
        assert b.engine.aliases == m.aliases == {"new_key_00": "key_00", "new_value_00": "value_00"}
        assert b.engine.precision.startswith(precision)
        (profile,) = [p for p in b.engine.profiles if p.name == "key_00"]
        assert [(shape[0], shape[2]) for shape in profile.shapes] == [(n, m.rows) for n in (1, 2, 4)]


def test_the_shipped_model_in_half_precision(tmp_path):
    policy = PrecisionPolicy("fp16")
    bundle = export(load_checkpoint(SHIPPED), tmp_path / "b", segment_lens=(1, 64), cover=False, calibration=policy)
    weights = bundle.manifest.files["weights.bin"]["bytes"]
    for b in build(bundle, "tensorrt-rtx").engines:
        assert b.engine.precision.startswith("fp16")
        assert b.bytes < weights + 10e6


def test_what_is_up_to_date_is_not_built_again(built):
    before = contents(built)
    again = build(built, "tensorrt-rtx")
    assert not any(b.new for b in again.engines)
    assert contents(built) == before


def test_other_targets_stand_side_by_side_and_the_same_is_replaced(built):
    (built / "log_probs.L8.onnx.txt").write_text("the user's own")
    many = build(built, "tensorrt-rtx", compute_capabilities=("sm89", "8.0"))
    assert all(b.new and b.engine.target.capabilities == ("sm80", "sm89") for b in many.engines)
    assert "log_probs.L8.tensorrt-rtx.sm80-sm89.engine" in {b.engine.file for b in many.engines}
    wider = build(built, "tensorrt-rtx", batch="1:2:4")
    assert all(b.new and b.engine.batch == (1, 2, 4) for b in wider.engines)
    m = Bundle.open(built).manifest
    assert len(m.engines) == 6
    assert {p.name for p in built.iterdir()} == {"manifest.json", "log_probs.L8.onnx.txt", *m.files}


def test_damaged_engines_are_built_anew(built):
    file = Bundle.open(built).manifest.engines[0].file
    (built / file).write_bytes((built / file).read_bytes()[:-1])
    again = build(built, "tensorrt-rtx")
    assert [b.new for b in again.engines].count(True) == 1
    assert Bundle.open(built).manifest == again.bundle.manifest


def test_force_builds_all(built):
    old = {e.file for e in Bundle.open(built).manifest.engines}
    assert all(b.new for b in build(built, "tensorrt-rtx", force=True).engines)
    now = {e.file for e in Bundle.open(built).manifest.engines}
    assert len(now) == 3 and not now & old  # until the manifest is written, the old ones count


def test_progress_is_told_by_phase(three):
    seen: list[tuple[str, float, float]] = []
    build(three, "tensorrt-rtx", batch=2, progress=lambda *step: seen.append(step))
    done = [d for _, d, _ in seen]
    assert done == sorted(done) and {total for _, _, total in seen} == {3}
    assert any("log_probs, segment 1-8" in text for text, _, _ in seen)


@pytest.mark.slow
def test_enwik8_base_in_half_precision(tmp_path):
    """41M parameters: the plan holds half-precision weights and little else."""
    checkpoint = random_checkpoint(*named_config("kimiyoung/enwik8-base"), std=0.02)
    policy = PrecisionPolicy("fp16")
    bundle = export(checkpoint, tmp_path / "bundle", segment_lens=(1,), cover=False, calibration=policy)
    engine = build(bundle, "tensorrt-rtx").engines[0]
    assert engine.bytes < 100e6
    assert engine.engine.precision == "fp16"
