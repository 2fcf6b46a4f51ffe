"""Weights in few bits: what a bundle of int8 or int4 stores and computes, in ONNX Runtime and as a module."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.bundles import Exported, ExportFixture, checkpoint_of, one_line
from tests.graphs.test_half import SHIPPED, largest_difference, typed
from tests.helpers import random_ids
from tests.verification.planting import planted
from txl_export import Bundle, Engine, InputError, build, export, load_checkpoint, verify
from txl_export.cost import export_bytes
from txl_export.graphs.stored import InBlocks
from txl_export.number_types import FORMATS, WeightFormat

HEADS = ("log_probs", "target", "top_k")
# Weights of std 0.3 exaggerate rounding: the model differs by up to 0.25.
ROUNDING = 0.5


@pytest.fixture
def few(exported: ExportFixture) -> Exported:
    """All weights in int8, of a model with projections, tails and tied tables."""
    return exported("adaptive", "kv", ("1-64",), HEADS, "int8", calibrated=False)


def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats whose operator computes in float32."""
    for name, form in FORMATS.items():
        monkeypatch.setitem(FORMATS, name, dataclasses.replace(form, accuracy_level=1))


def exact_nodes(graph: onnx.GraphProto) -> None:
    """The same of a graph."""
    for a in (a for n in graph.node if n.op_type == "MatMulNBits" for a in n.attribute if a.name == "accuracy_level"):
        a.i = 1


def graph_of(bundle: Path, file: str) -> onnx.GraphProto:
    return onnx.load(bundle / file, load_external_data=False).graph


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("n_in", [5, 16, 100, 128, 410])
def test_a_stored_weight_is_within_half_a_step_of_the_weight(bits: int, n_in: int):
    weight = normal(7, n_in, seed=n_in)
    weight[2], weight[3, 0], weight[4, 0] = 0.0, 30.0, -30.0  # a row of zeros, and outliers of both signs
    weight[5, :2] = torch.tensor([9.0, -9.0])  # what has no room for the other sign's farthest is a whole step off
    stored = InBlocks(WeightFormat(bits, 128, 4))
    kept = stored.tensors(weight)
    size = kept["codes"].shape[-1] * 8 // bits
    assert kept["codes"].dtype == torch.uint8
    assert kept["codes"].shape[:2] == kept["scales"].shape == (7, -(-n_in // size))
    steps = kept["scales"].abs().repeat_interleave(size, dim=1)[:, :n_in]
    found = stored.weight(kept, n_in)
    off = (found - weight).abs() / steps.clamp(min=1e-30)
    assert off[5, :2].max() <= 1.0001 and torch.cat([off[:5], off[6:]]).max() <= 1.0001
    assert (off > 0.5001).sum() <= 7 * kept["scales"].shape[1]
    assert not found[2].any() and found[3, 0] == 30.0 and found[4, 0] == -30.0


def test_as_many_numbers_share_a_scale_as_take_the_fewest_bytes():
    form = WeightFormat(8, 128, 4)
    assert [form.block_of(n) for n in (5, 16, 24, 100, 128, 410, 512, 1000)] == [16, 16, 32, 128, 128, 32, 128, 128]
    assert WeightFormat(4, 32, 4).block_of(512) == 32


def operator(stored: InBlocks, kept: dict[str, torch.Tensor], bias: torch.Tensor | None) -> Callable[..., np.ndarray]:
    """ONNX Runtime's, with these weights."""
    n_out, _, nbytes = kept["codes"].shape
    weights = kept | ({} if bias is None else {"bias": bias})
    names = ["x", "codes", "scales"] + ([] if bias is None else ["", "", "bias"])
    block, f = nbytes * 8 // stored.format.bits, stored.format

    def run(x: torch.Tensor) -> np.ndarray:
        attributes = {"K": x.shape[-1], "N": n_out, "bits": f.bits, "block_size": block}
        node = helper.make_node(
            "MatMulNBits", names, ["y"], domain="com.microsoft", accuracy_level=f.accuracy_level, **attributes
        )
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
        tensors = [numpy_helper.from_array(t.numpy(), name) for name, t in weights.items()]
        graph = helper.make_graph([node], "g", ends[:1], ends[1:], tensors)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found: np.ndarray = session.run(None, {"x": x.numpy()})[0]
        return found

    return run


@pytest.mark.parametrize("level", [1, 4])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("n_in", [20, 96, 512])
def test_onnx_runtime_multiplies_as_the_module_does(level: int, bits: int, n_in: int):
    """Level 1 in float32; level 4 with the operand in 8 bits, where sums of whole numbers are exact."""
    stored = InBlocks(WeightFormat(bits, 128, level))
    kept, bias = stored.tensors(normal(40, n_in)), normal(40, seed=1)
    for given in (None, bias):
        run = operator(stored, kept, given)
        for x in (normal(1, 1, n_in, seed=2), normal(3, 5, n_in, seed=3)):
            expected = stored.product(x, kept, given).numpy()
            np.testing.assert_allclose(run(x), expected, atol=2e-6 * np.abs(expected).max(), rtol=0)


def test_a_bundle_computes_what_its_module_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few: Exported):
    """With operators that compute in float32, over segments of all lengths and a memory that wraps."""
    exact(monkeypatch)
    bundle = planted(few.path, tmp_path / "exact", exact_nodes)
    ours, module = Engine.load(bundle, threads=1).session(3), typed(bundle, few.checkpoint).session(3)
    assert largest_difference(ours, module) < 1e-4


def test_its_operands_are_rounded_as_the_module_rounds_them(few: Exported):
    ours, module, judge = few.engine.session(3), typed(few.path, few.checkpoint).session(3), few.judge.session(3)
    apart = largest_difference(few.engine.session(3), judge)
    assert 0.02 < apart < ROUNDING
    # A number between two steps may go either way, and the memory keeps it: most of the time none does.
    assert largest_difference(ours, module) < apart / 2


@pytest.mark.parametrize("head", HEADS)
def test_heads_answer_near_the_reference(few: Exported, head: str):
    ids, targets = (random_ids(few.config, 2, 8, seed=seed) for seed in (2, 3))
    asked = targets if head == "target" else None
    expected = few.judge.session(2).feed(ids, head=head, targets=asked)
    for engine in (few.engine, typed(few.path, few.checkpoint)):
        found = engine.session(2).feed(ids, head=head, targets=asked)
        a, b = (getattr(answer, "log_probs", answer) for answer in (found, expected))
        assert a.dtype == np.float32 and np.abs(a - b).max() < ROUNDING


def test_products_with_weights_are_in_few_bits_and_nothing_else_is(few: Exported):
    model = onnx.load(few.path / "log_probs.L1-64.onnx", load_external_data=False)
    assert {o.domain: o.version for o in model.opset_import} == {"": 20, "com.microsoft": 1}
    graph = model.graph
    # By layer W_qkv, W_o, W_1 and W_2; projections of three tables, and of three clusters of the softmax; the clusters.
    assert sum(n.op_type == "MatMulNBits" for n in graph.node) == 2 * 4 + 3 + 3 + 3
    assert sum(n.op_type == "MatMul" for n in graph.node) == 2 * 3  # content, positions and values
    assert not {n.op_type for n in graph.node} & {"Gemm", "DequantizeLinear"}
    ends = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert ends == {TensorProto.FLOAT, TensorProto.INT64}
    embedded = [t for t in graph.initializer if t.name.startswith("opening.") and ".tables." in t.name]
    assert len(embedded) == 3 and {t.data_type for t in embedded} == {TensorProto.FLOAT}


def test_an_fp32_bundle_needs_no_operators_of_onnx_runtime(exported: ExportFixture):
    path = exported("paper", "kv").path / "log_probs.L1-64.onnx"
    assert [o.domain for o in onnx.load(path, load_external_data=False).opset_import] == [""]
    onnx.checker.check_model(path)


@pytest.fixture(scope="module")
def overruled(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of one token per call in which names overrule what a calibration finds."""
    ids = random_ids(checkpoint_of("paper").config, 2, 100)
    tensors = {"*": "fp32", "layers.*.W_2": "int4", "layers.1.W_1": "int4", "logits": "int4"}
    options = {"segment_lens": (1,), "cover": False, "layout": "hidden", "tensors": tensors, "calibration": ids}
    return export(checkpoint_of("paper"), tmp_path_factory.mktemp("few") / "bundle", precision="int4", **options)


def test_products_are_overruled_by_name(overruled: Bundle):
    policy = Bundle.open(overruled.path).manifest.policy
    few = {"layers.0.W_2", "layers.1.W_2", "layers.1.W_1", "logits"}
    assert {n for n, c in policy.choices.items() if c.precision == "int4"} == few
    assert {c.why for c in policy.choices.values()} == {"overridden"}
    graph = graph_of(overruled.path, "log_probs.L1.onnx")
    assert sum(n.op_type == "MatMulNBits" for n in graph.node) == 4
    ours = Engine.load(overruled, threads=1).session(3)
    module = typed(overruled.path, checkpoint_of("paper")).session(3)
    for i in range(60):
        ids = random_ids(overruled.manifest.config, 3, 1, seed=i)
        assert np.abs(ours.feed(ids) - module.feed(ids)).max() < 0.2  # the judge is more than 1 away at times


def test_one_token_of_one_stream_is_computed_from_packed_weights(overruled: Bundle):
    """From weights as they are in the file ONNX Runtime makes float32 ones at every call, which is slow."""
    engine = Engine.load(overruled, threads=1)
    engine.session(1).feed([[3]])
    (loaded,) = engine.model._sessions.values()
    with pytest.raises(RuntimeError, match="disable_prepacking"):  # there is no such entry
        loaded.get_session_options().get_session_config_entry("session.disable_prepacking")


def test_tensorrt_builds_nothing_of_it(overruled: Bundle):
    with pytest.raises(InputError, match=r"int4 weights.*MatMulNBits.*--precision fp16") as e:
        build(overruled, backend="tensorrt-rtx")
    one_line(e.value)


def test_the_shipped_model_in_int8_keeps_its_perplexity(tmp_path: Path):
    calibration, text = (Path(m.__file__).read_bytes() for m in (dataclasses, argparse))
    options = {"mem_len": 128, "segment_lens": ("64",), "cover": False, "calibration": calibration}
    bundle = export(load_checkpoint(SHIPPED), tmp_path / "bundle", precision="int8", **options)
    m = bundle.manifest
    assert set(m.policy.choices) >= {"logits", "layers.4.W_2"} and not m.policy.in_fp32()
    assert all("changes perplexity by" in c.why for c in m.policy.choices.values())
    assert m.policy.describe()[0].startswith(
        "int8, chosen on text, 4 streams of 640 tokens: with all of them perplexity"
    )
    report = verify(bundle, text=text, segments=60)  # held out of its training
    assert report.passed, report.failure
    assert (report.backend, report.notes) == ("onnxruntime", ())
    assert report.perplexity_difference < 5e-3 and report.top1 >= 0.98
    # Position tables and the embedding's rows stay.
    assert m.files["weights.bin"]["bytes"] < 0.45 * export_bytes(m.config, m.mem_len, 64, graphs=0)
