"""Weights in few bits: what a bundle of int8 or int4 stores and computes, in ONNX Runtime and as a module."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tests.bundles import Exported, checkpoint_of, one_line
from tests.graphs.test_half import SHIPPED, largest_difference, typed
from tests.graphs.test_heads import HEADS
from tests.helpers import random_ids
from txl_export import Bundle, Engine, InputError, build, export, load_checkpoint, verify
from txl_export.graphs.stored import InBlocks
from txl_export.number_types import FORMATS, WeightFormat
from txl_export.precision import PrecisionPolicy

FEW = sorted(FORMATS)
# Weights of std 0.3 exaggerate rounding: these models differ by up to 0.0 in int8 and 0.0 in int4.
ROUNDING = {"int8": 0.1, "int4": 2.0}
WEIGHTED = {"W_qkv", "W_o", "W_1", "W_2", "logits"}


def graph_of(bundle: Path, file: str = "log_probs.L1-64.onnx") -> onnx.GraphProto:
    return onnx.load(bundle / file, load_external_data=False).graph


def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats whose operator computes in float32."""
    for name, form in FORMATS.items():
        monkeypatch.setitem(FORMATS, name, dataclasses.replace(form, accuracy_level=1))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("n_in", [5, 16, 100, 128, 410])
def test_a_stored_weight_is_within_a_step_of_the_weight(bits, n_in):
    weight = torch.randn(7, n_in, generator=torch.Generator().manual_seed(n_in))
    weight[2], weight[3, 0] = 0.0, 30.0  # a row of zeros, and an outlier
    stored = InBlocks(WeightFormat(bits, 128, 4))
    kept = stored.tensors(weight)
    size = kept["codes"].shape[-1] * 8 // bits
    assert kept["codes"].shape[:2] == kept["scales"].shape == (7, -(-n_in // size))
    found = stored.weight(kept, n_in)
    steps = kept["scales"].abs().repeat_interleave(size, dim=1)[:, :n_in]
    apart = (found - weight).abs()
    assert (apart <= steps * 1.0001).all()
    assert (apart > steps * 0.5001).float().mean() < 0.02  # but for the farthest of the other sign: half a step
    assert not found[2].any() and found[3, 0] == 30.0


def test_blocks_waste_few_bytes():
    form = WeightFormat(8, 128, 4)
    assert [form.block_of(n) for n in (5, 16, 24, 100, 128, 410, 512, 1026)] == [16, 16, 32, 128, 128, 32, 128, 16]


@pytest.mark.parametrize(
    ("name", "layout", "precision"),
    [
        ("paper", "kv", "int8"),
        ("same_length", "hidden", "int8"),
        ("wider_window", "kv", "int4"),
        ("zeros_pre_lnorm", "hidden", "int4"),
    ],
)
def test_onnx_runtime_multiplies_by_the_weights_that_the_module_has(monkeypatch, tmp_path, name, layout, precision):
    """With an operator that computes in float32, over segments of all lengths and a memory that wraps."""
    exact(monkeypatch)
    checkpoint = checkpoint_of(name)
    options = {"segment_lens": ("1-64",), "layout": layout, "calibration": PrecisionPolicy(precision)}
    bundle = export(checkpoint, tmp_path / "bundle", **options)
    ours = Engine.load(bundle, threads=1).session(3)
    module = typed(bundle.path, checkpoint).session(3)
    assert largest_difference(ours, module) < 1e-4
    judge = Engine.load(checkpoint, backend="eager", segment_len=64)
    assert largest_difference(ours, judge.session(3), feeds=4) > 1e-3  # rounding is there


@pytest.mark.parametrize("precision", FEW)
@pytest.mark.parametrize(("name", "layout"), [("same_length", "kv"), ("paper", "hidden")])
def test_operands_are_rounded_as_the_module_rounds_them(exported, name, layout, precision):
    bundle: Exported = exported(name, layout, precision=precision)
    ours, module = bundle.engine.session(3), typed(bundle.path, bundle.checkpoint).session(3)
    between = largest_difference(ours, module)
    apart = largest_difference(bundle.engine.session(3), bundle.judge.session(3))
    print(name, layout, precision, between, apart)
    assert between < apart < ROUNDING[precision]


def test_every_head_answers_in_float32_and_near_the_reference(exported):
    bundle: Exported = exported("adaptive", "kv", ("1-8",), HEADS, "int8")
    ids = random_ids(bundle.config, 2, 8, seed=2)
    for backend in (bundle.engine, typed(bundle.path, bundle.checkpoint)):
        for head in HEADS:
            targets = (ids[:, -1:] if head.endswith("@last") else ids) if head.startswith("target") else None
            found, expected = (e.session(2).feed(ids, head=head, targets=targets) for e in (backend, bundle.judge))
            found, expected = (getattr(answer, "log_probs", answer) for answer in (found, expected))
            assert found.dtype == np.float32
            assert np.abs(found - expected).max() < ROUNDING["int8"], head


@pytest.mark.parametrize("layout", ["hidden", "kv"])
def test_one_token_of_one_stream_is_computed_from_packed_weights(exported, layout):
    """Unpacked, ONNX Runtime makes all weights float32 at every call."""
    bundle: Exported = exported("plain", layout, (1, 8), precision="int8")
    session, judge = bundle.engine.session(1), bundle.judge.session(1)
    for i in range(20):
        ids = random_ids(bundle.config, 1, 1, seed=i)
        assert np.abs(session.feed(ids) - judge.feed(ids)).max() < ROUNDING["int8"]
    (loaded,) = bundle.engine.model._sessions.values()
    with pytest.raises(RuntimeError):  # as for an entry that was never made
        loaded.get_session_options().get_session_config_entry("session.disable_prepacking")


def test_products_with_weights_are_in_few_bits_and_nothing_else_is(exported):
    graph = graph_of(exported("paper", "kv", precision="int8").path)
    few = [n for n in graph.node if n.op_type == "MatMulNBits"]
    assert len(few) == 2 * 4 + 1  # by layer W_qkv, W_o, W_1, W_2, and the softmax's
    assert sum(n.op_type == "MatMul" for n in graph.node) == 2 * 3  # content, positions and values
    assert {t.data_type for t in graph.initializer} <= {
        onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT64, onnx.TensorProto.BOOL,
    }  # fmt: skip
    ends = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert ends == {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}


def test_an_fp32_bundle_needs_no_operators_of_onnx_runtime(exported):
    model = onnx.load(exported("paper", "kv").path / "log_probs.L1-64.onnx", load_external_data=False)
    assert [o.domain for o in model.opset_import] == [""]
    onnx.checker.check_model(model)


def test_weights_are_stored_once_and_small(exported):
    sizes = {p: (exported("deep", "kv", precision=p).path / "weights.bin").stat().st_size for p in ("fp32", *FEW)}
    one = exported("deep", "kv", (8,), precision="int8").path / "weights.bin"
    both = exported("deep", "kv", (1, 8), ("log_probs", "target"), "int8").path / "weights.bin"
    print(sizes, one.stat().st_size, both.stat().st_size)
    assert both.stat().st_size == one.stat().st_size
    assert sizes["int4"] < sizes["int8"] < sizes["fp32"]


def test_products_are_overruled_by_name(tmp_path):
    bundle = export(
        checkpoint_of("paper"),
        tmp_path / "bundle",
        segment_lens=("4",),
        cover=False,
        precision="int8",
        calibration=random_ids(checkpoint_of("paper").config, 2, 100),
        tensors={"layers.1.W_1": "fp32", "layers.*.W_o": "fp32", "logits": "int8"},
    )
    policy = Bundle.open(bundle.path).manifest.policy
    kept = {n for n, c in policy.choices.items() if c.precision == "fp32" and c.why.endswith("overridden")}
    assert kept == {"layers.1.W_1", "layers.0.W_o", "layers.1.W_o"}
    graph = graph_of(bundle.path, "log_probs.L4.onnx")
    stored = {t.name for t in graph.initializer}
    assert {"layers.1.feed_forward.W_1.weight", "layers.0.attention.W_o.weight"} <= {
        n.replace("attention.attention", "attention") for n in stored
    }
    assert "heads.log_probs.logits_of.clusters.0.codes" in stored


def test_the_shipped_model_in_int8_keeps_its_perplexity(tmp_path):
    checkpoint = load_checkpoint(SHIPPED)
    bundle = export(
        checkpoint,
        tmp_path / "bundle",
        mem_len=128,
        segment_lens=("64",),
        cover=False,
        precision="int8",
        calibration=Path(dataclasses.__file__).read_bytes(),
    )
    policy = bundle.manifest.policy
    assert set(policy.choices) >= {"logits", "layers.4.W_2"} and not policy.in_fp32()
    assert all("changes perplexity by" in c.why for c in policy.choices.values())
    assert policy.describe()[0].startswith("int8, chosen on text, 4 streams of 640 tokens: with all of them perplexity")
    report = verify(bundle, text=Path(argparse.__file__).read_bytes(), segments=60)  # held out of its training
    assert report.passed, report.failure
    assert report.backend == "onnxruntime" and report.notes == ()
    assert report.perplexity_difference < 5e-3 and report.top1 >= 0.98
    whole = export(checkpoint, tmp_path / "fp32", mem_len=128, segment_lens=("64",), cover=False)
    few, full = (Path(b.path / "weights.bin").stat().st_size for b in (bundle, whole))
    assert few < 0.45 * full  # position tables and the embedding's rows stay


def test_tensorrt_builds_nothing_of_it(exported):
    bundle: Exported = exported("plain", "kv", (8,), precision="int8")
    with pytest.raises(InputError, match=r"int8 weights.*MatMulNBits.*--precision fp16") as e:
        build(bundle.path, backend="tensorrt-rtx")
    one_line(e.value)
