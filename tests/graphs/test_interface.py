"""What the ONNX files promise: names, pairs, symbolic batch, shared weights."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.helpers import random_ids
from txl_export.bundle import WEIGHTS, Bundle

LAYOUTS = ["hidden", "kv"]


def graphs(path):
    bundle = Bundle.open(path)
    return [(g, onnx.load(path / g.file, load_external_data=False).graph) for g in bundle.manifest.graphs]


def dims(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def state_names(graph):
    inputs = sorted(v.name for v in graph.input if v.name not in ("input_ids", "targets"))
    outputs = sorted(v.name for v in graph.output if v.name.startswith("new_"))
    return inputs, outputs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sorted_states_pair(exported, layout):
    """Triton pairs implicit states by sorted name: 11 layers, so that 10 could sort before 2."""
    for _, graph in graphs(exported("deep", layout, ("1-8",)).path):
        inputs, outputs = state_names(graph)
        assert outputs == [f"new_{name}" for name in inputs]
        assert len(inputs) == 1 + 11 * (1 if layout == "hidden" else 2)
        shapes = {v.name: dims(v) for v in [*graph.input, *graph.output]}
        assert all(shapes[i] == shapes[o] for i, o in zip(inputs, outputs, strict=True))


@pytest.mark.parametrize("model, layout", [("stepping", "kv"), ("stepping", "hidden"), ("no_memory", "kv")])
def test_batch_is_symbolic_and_segment_as_named(exported, model, layout):
    path = exported(model, layout, (1, 8) if model == "stepping" else ("1-64",)).path
    for spec, graph in graphs(path):
        assert all(dims(v)[0] == "batch" for v in [*graph.input, *graph.output])
        length = spec.segment.lo if spec.segment.fixed else "segment"
        ids = next(v for v in graph.input if v.name == "input_ids")
        assert dims(ids) == ["batch", length]
        assert dims(graph.output[0]) == ["batch", length, 29]
        # Nowhere inside is the batch that the tracer saw (3) frozen into a shape.
        assert not [v.name for v in graph.value_info if len(dims(v)) > 2 and dims(v)[0] == 3]


def test_no_memory_means_no_memory_tensors(exported):
    for _, graph in graphs(exported("no_memory").path):
        assert [v.name for v in graph.input] == ["input_ids", "positions"]
        assert [v.name for v in graph.output] == ["log_probs", "new_positions"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_bound_run_equals_plain_run(exported, layout, batch_size):
    """Bound buffers against `session.run` with numpy arrays, bit for bit, over several segments."""
    bundle = exported("stepping", layout, (1, 8))
    engine, session = bundle.engine, bundle.engine.session(batch_size)
    manifest = Bundle.open(bundle.path).manifest
    state = session._streams.state()
    for i, n in enumerate([8, 1, 8, 3, 1, 1, 8, 5, 8]):
        ids = random_ids(bundle.config, batch_size, n, seed=i)
        graph = engine.model.session(engine.model.graph("log_probs", n), batch_size)
        names = [o.name for o in graph.get_outputs()]
        plain = dict(zip(names, graph.run(None, {"input_ids": ids, **state}), strict=True))
        np.testing.assert_array_equal(session.feed(ids), plain["log_probs"])
        state = {s.input: plain[s.output] for s in manifest.states} | {"positions": plain["new_positions"]}
        now = session._streams.state()
        assert all(np.array_equal(now[k], state[k]) for k in state) and now.keys() == state.keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_graphs_share_their_weights(exported, layout):
    three, one = (exported("stepping", layout, lens).path for lens in [(1, 8), ("1-8",)])
    assert len(Bundle.open(three).manifest.graphs) == 3 and len(Bundle.open(one).manifest.graphs) == 1
    assert (three / WEIGHTS).stat().st_size < 1.3 * (one / WEIGHTS).stat().st_size


def test_no_shift_at_one_token(exported):
    """The graph for single tokens has nothing to shift: it pads nothing."""
    ops = {
        str(spec.segment): {n.op_type for n in g.node} for spec, g in graphs(exported("stepping", "kv", (1, 8)).path)
    }
    assert "Pad" in ops["8"] and "Pad" not in ops["1"]


def test_graphs_have_no_random_or_control_flow(exported):
    for _, graph in graphs(exported("same_length").path):
        ops = {n.op_type for n in graph.node}
        assert not ops & {"If", "Loop", "Scan", "Dropout", "NonZero", "RandomNormal"}
        assert all(n.domain == "" for n in graph.node)


def test_file_is_valid_onnx(exported):
    path = exported("same_length").path
    onnx.checker.check_model(path / "log_probs.L1-64.onnx", full_check=True)
    ort.InferenceSession(path / "log_probs.L1-64.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nodes_are_named_by_their_module(exported, layout):
    """Runtimes and builders name nodes when something is wrong with them; nothing tells of the exporting machine."""
    for _, graph in graphs(exported("stepping", layout, (1, 8)).path):
        names = [n.name for n in graph.node]
        modules = {name.rpartition("/")[0] for name in names}
        assert len(set(names)) == len(names)
        assert {m.split(".")[0] for m in modules} == {"opening", "layers", "heads"}
        for part in ("attention", "attention.positions", "attention.norm", "feed_forward.W_1"):
            assert {f"layers.0.{part}", f"layers.1.{part}"} <= modules
        kinds = {p.key for node in graph.node for p in node.metadata_props}
        assert kinds <= {"txl.part", "pkg.onnxscript.rewriter.rule_name"}
