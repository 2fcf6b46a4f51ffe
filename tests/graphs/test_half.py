"""Half precision: what is in half and what is not, and what it does to the numbers over many segments.

ONNX Runtime's CPU provider computes half graphs in fp32 inside, so it proves types and wiring; the same module in
PyTorch half rounds and overflows, so it proves the numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.bundles import Exported, checkpoint_of, one_line
from tests.graphs.test_heads import HEADS
from tests.helpers import random_ids
from txl_export import Bundle, Engine, InputError, Session, export, load_checkpoint, verify
from txl_export.checkpoints import Checkpoint
from txl_export.precision import PrecisionPolicy

SHIPPED = Path("models/stdlib-bytes")
# Weights of std 0.3 exaggerate rounding: these models differ by up to 0.052 in fp16, of which rounding the weights
# alone makes half, and eight times that in bf16; a wrong or missing key moves log-probabilities by more than 1.
ROUNDING = {"fp16": 0.1, "bf16": 0.8}
FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def typed(path: Path, judge: Checkpoint) -> Engine:
    """The bundle's own module in PyTorch."""
    return Engine.load(dataclasses.replace(Bundle.open(path), judge=judge), backend="typed")


def largest_difference(ours: Session, theirs: Session, feeds: int = 60, seed: int = 0) -> float:
    """Feed both the same tokens, some streams starting anew now and then; the largest difference of log-probs."""
    rng = np.random.default_rng(seed)
    worst = 0.0
    for i in range(feeds):
        if i % 13 == 5:
            fresh = rng.integers(0, ours.batch_size, 1)
            ours.reset(fresh), theirs.reset(fresh)
        ids = random_ids(ours.info.config, ours.batch_size, int(rng.choice([1, 2, 7, 13, 64])), seed=i)
        apart = np.abs(ours.feed(ids) - theirs.feed(ids))
        assert not np.isnan(apart).any()
        worst = max(worst, float(apart.max()))
    assert ours.positions.tolist() == theirs.positions.tolist()
    return worst


@pytest.mark.parametrize("layout", ["hidden", "kv"])
@pytest.mark.parametrize("name", ["paper", "same_length", "wider_window", "zeros_pre_lnorm", "no_memory"])
def test_the_typed_module_in_fp32_is_the_reference(exported, name, layout):
    bundle: Exported = exported(name, layout)
    ours = typed(bundle.path, bundle.checkpoint).session(3)
    assert largest_difference(ours, bundle.judge.session(3)) < 1e-4


@pytest.mark.parametrize(
    ("name", "layout"),
    [("paper", "kv"), ("same_length", "hidden"), ("wider_window", "kv"), ("zeros_pre_lnorm", "hidden")],
)
def test_fp16_graphs_are_wired_like_the_module_and_round_like_half(exported, name, layout):
    bundle: Exported = exported(name, layout, precision="fp16")
    module = typed(bundle.path, bundle.checkpoint)
    assert largest_difference(module.session(3), bundle.judge.session(3)) < ROUNDING["fp16"]
    session = bundle.engine.session(3)
    assert largest_difference(session, bundle.judge.session(3)) < ROUNDING["fp16"]
    kinds = {array.dtype for layer in session.memory_tensors(1) for array in layer.values()}
    assert kinds == {np.dtype(np.float16)}


def test_every_head_answers_in_float32_and_near_the_reference(exported):
    bundle: Exported = exported("adaptive", "hidden", ("1-8",), HEADS, "fp16")
    ids = random_ids(bundle.config, 2, 8, seed=2)
    for backend in (bundle.engine, typed(bundle.path, bundle.checkpoint)):
        for head in HEADS:
            targets = (ids[:, -1:] if head.endswith("@last") else ids) if head.startswith("target") else None
            found, expected = (e.session(2).feed(ids, head=head, targets=targets) for e in (backend, bundle.judge))
            found, expected = (getattr(answer, "log_probs", answer) for answer in (found, expected))
            assert found.dtype == np.float32
            assert np.abs(found - expected).max() < ROUNDING["fp16"], head


@pytest.mark.parametrize("layout", ["hidden", "kv"])
def test_bf16_runs_as_a_module_and_nowhere_else_on_a_cpu(exported, layout):
    bundle: Exported = exported("same_length", layout, precision="bf16")
    opened = dataclasses.replace(Bundle.open(bundle.path), judge=bundle.checkpoint)
    engine = Engine.load(opened)
    assert engine.backend == "typed"
    assert largest_difference(engine.session(3), bundle.judge.session(3)) < ROUNDING["bf16"]
    with pytest.raises(InputError, match=r"bfloat16.*--backend typed") as e:
        Engine.load(bundle.path, backend="onnxruntime")
    one_line(e.value)


@pytest.mark.parametrize(("precision", "backend"), [("fp16", "onnxruntime"), ("bf16", "typed")])
def test_saved_sessions_go_on_exactly(exported, tmp_path, precision, backend):
    bundle: Exported = exported("same_length", "kv", precision=precision)
    engine = Engine.load(dataclasses.replace(Bundle.open(bundle.path), judge=bundle.checkpoint), backend=backend)
    session = engine.session(2)
    session.feed(random_ids(bundle.config, 2, 40))
    session.save(tmp_path / "session.safetensors")
    restored, forked = engine.restore(tmp_path / "session.safetensors"), session.fork()
    ids = random_ids(bundle.config, 2, 9, seed=3)
    expected = session.feed(ids)
    np.testing.assert_array_equal(restored.feed(ids), expected)
    np.testing.assert_array_equal(forked.feed(ids), expected)


def types_of(path: Path) -> dict[str, list[tuple[int, ...]]]:
    """By operator, the types of its tensor inputs and outputs as ONNX itself infers them."""
    model = onnx.load(path)
    kept = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*kept.input, *kept.output, *kept.value_info)}
    known |= {t.name: t.data_type for t in kept.initializer}
    found: dict[str, list[tuple[int, ...]]] = {}
    for node in kept.node:
        floats = tuple(t for n in (*node.input, *node.output) if (t := known.get(n)) in (FLOAT, HALF))
        found.setdefault(node.op_type, []).append(floats)
    return found


def test_products_are_in_half_and_what_joins_them_is_not(exported):
    path = exported("paper", "kv", precision="fp16").path / "log_probs.L1-64.onnx"
    types = types_of(path)
    assert {t for floats in types["MatMul"] for t in floats} == {HALF}
    for joint in ("LayerNormalization", "Softmax", "LogSoftmax"):
        assert {t for floats in types[joint] for t in floats} == {FLOAT}
    graph = onnx.load(path, load_external_data=False).graph
    ends = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert (ends["key_00"], ends["new_value_01"], ends["log_probs"]) == (HALF, HALF, FLOAT)


def test_weights_are_stored_once_in_the_precision_they_are_used_in(exported):
    full, half = (exported("paper", "kv", precision=p).path / "weights.bin" for p in ("fp32", "fp16"))
    assert half.stat().st_size < 0.65 * full.stat().st_size


def test_tensors_and_memory_are_overruled_by_name(tmp_path):
    bundle = export(
        checkpoint_of("paper"),
        tmp_path / "bundle",
        segment_lens=("4",),
        cover=False,
        precision="fp16",
        memory_precision="fp32",
        tensors={"layers.1.W_1": "fp32", "layers.*.content": "fp32"},
    )
    graph = onnx.load(bundle.path / "log_probs.L4.onnx", load_external_data=False).graph
    kinds = {t.name: t.data_type for t in graph.initializer}
    assert [kinds[f"layers.{n}.feed_forward.W_1.bias"] for n in (0, 1)] == [HALF, FLOAT]
    ends = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert ends["key_00"] == ends["new_key_00"] == FLOAT
    ours, theirs = Engine.load(bundle).session(2), Engine.load(checkpoint_of("paper"), segment_len=4).session(2)
    ids = random_ids(bundle.manifest.config, 2, 40)
    assert np.abs(ours.feed(ids) - theirs.feed(ids)).max() < ROUNDING["fp16"]
    policy = Bundle.open(bundle.path).manifest.policy
    assert policy.choices["layers.0.content"].why == "overridden"
    assert policy.choices["layers.0.content"].largest > 0


def dangerous() -> Checkpoint:
    """A trained-looking model whose feed-forward layers pass 65,504 and whose LayerNorms bring all back."""
    checkpoint = checkpoint_of("paper")
    weights = dict(checkpoint.weights)
    for name in ("W_1", "W_2"):
        weights[f"layers.1.feed_forward.{name}"] = weights[f"layers.1.feed_forward.{name}"] * 400
    return dataclasses.replace(checkpoint, weights=weights)


def exported_once(path: Path, checkpoint: Checkpoint, **options) -> Path:
    return export(checkpoint, path, segment_lens=("8",), segment_len=8, cover=False, **options).path


def test_naive_half_ends_in_nan_and_the_calibrated_policy_does_not(tmp_path):
    checkpoint = dangerous()
    ids = random_ids(checkpoint.config, 2, 400, seed=7)
    naive = exported_once(tmp_path / "naive", checkpoint, calibration=PrecisionPolicy.uniform("fp16"))
    assert np.isnan(typed(naive, checkpoint).session(2).feed(ids)).any()

    careful = exported_once(tmp_path / "careful", checkpoint, precision="fp16")
    policy = Bundle.open(careful).manifest.policy
    assert policy.choices["layers.1.W_2"].precision == "fp32"
    assert policy.choices["layers.1.W_2"].largest > 65504
    assert policy.choices["layers.0.W_2"].precision == "fp16"
    report = verify(careful, checkpoint, ids=ids, batch_size=2, segments=49, backend="typed")
    assert report.passed, report.failure
    assert report.perplexity_difference < 1e-3


def test_what_overflows_fp32_itself_is_left_in_fp32(tmp_path):
    checkpoint = checkpoint_of("paper")
    weights = dict(checkpoint.weights)
    for name in ("W_1", "W_2"):
        weights[f"layers.0.feed_forward.{name}"] = weights[f"layers.0.feed_forward.{name}"] * np.float32(1e20)
    broken = dataclasses.replace(checkpoint, weights=weights)
    choices = Bundle.open(exported_once(tmp_path / "broken", broken, precision="fp16")).manifest.policy.choices
    for name in ("layers.0.W_2", "layers.1.W_1", "logits"):  # an infinity becomes NaN in the first LayerNorm
        assert (choices[name].precision, choices[name].largest) == ("fp32", None)


def test_scores_of_a_thousand_keep_their_units(tmp_path):
    """Half rounds 1025.3 to 1025: weights exp(0.5) off; calibration keeps such scores in fp32."""
    checkpoint = checkpoint_of("paper")
    weights = dict(checkpoint.weights)
    for name in ("W_q", "W_kE"):  # content scores of some hundreds
        weights[f"layers.0.attention.{name}"] = weights[f"layers.0.attention.{name}"] * 12
    sharp = dataclasses.replace(checkpoint, weights=weights)
    kept = exported_once(tmp_path / "kept", sharp, precision="fp16")
    choice = Bundle.open(kept).manifest.policy.choices["layers.0.content"]
    assert choice.precision == "fp32"
    assert choice.result > 256
    assert "nats" in choice.why


@pytest.mark.parametrize(("precision", "allowed"), [("fp16", 1e-3), ("bf16", 5e-3)])
def test_the_shipped_model_in_half_on_real_text_over_200_segments(tmp_path, precision, allowed):
    checkpoint = load_checkpoint(SHIPPED)
    text = Path(argparse.__file__).read_bytes()  # held out of its training
    bundle = export(
        checkpoint,
        tmp_path / "bundle",
        segment_lens=("64",),
        cover=False,
        precision=precision,
        calibration=Path(dataclasses.__file__).read_bytes(),
    )
    report = verify(bundle, text=text, segments=200, backend="typed")
    assert report.passed, report.failure
    assert len(report.segments) == 200
    assert report.trend.drifts is False
    assert report.perplexity_difference < allowed
    assert report.top1 >= 0.99
