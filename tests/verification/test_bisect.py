"""Where accuracy is lost: every fault that is planted is found, named and explained."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from tests.bundles import Exported, ExportFixture, checkpoint_of, one_line
from tests.helpers import random_checkpoint, tiny_config
from tests.verification.planting import (
    ALL,
    HALF,
    Change,
    Finder,
    at,
    insert_after,
    nameless,
    one_trace,
    planted,
    sealed,
    set_node,
)  # fmt: skip
from txl_export import InputError, export, verify
from txl_export.backends.onnxruntime import OnnxRuntimeStreams
from txl_export.checkpoints import native
from txl_export.cli import main
from txl_export.config import Dialect
from txl_export.verification import Finding, bisect
from txl_export.verification.bisection import search

__all__ = ["one_trace"]
TABLE = "layers.1.attention.attention.positions.table"


@pytest.fixture(scope="module")
def kv(one_trace: None, exported: ExportFixture) -> Exported:
    """Layout kv, one graph for 1 to 8 tokens."""
    return exported("paper", "kv", ("1-8",))


@pytest.fixture(scope="module")
def hidden(one_trace: None, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Layout hidden, a graph for 4 tokens, an adaptive softmax, a clamp, a first memory of zeros, two heads."""
    config = tiny_config(
        vocab_size=61, cutoffs=(17, 40), div_val=2, d_embed=20, tie_projs=(False, True, False), clamp_len=8
    )
    model = random_checkpoint(config, Dialect(cluster_order="reversed", initial_memory="zeros"), seed=3, std=0.3)
    out = tmp_path_factory.mktemp("hidden") / "bundle"
    export(model, out, segment_lens=(4,), layout="hidden", head=("log_probs", "target@last"), cover=False)
    return Exported(out, model)


@pytest.fixture(scope="module")
def ring(one_trace: None, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Layout ring, segments of 24 tokens that calls of 8 run."""
    out = tmp_path_factory.mktemp("ring") / "bundle"
    export(checkpoint_of("paper"), out, segment_lens=(8,), layout="ring", segment_len=24, cover=False)
    return Exported(out, checkpoint_of("paper"))


def searched(made: Exported, target: Path, *changes: Change, **options: object) -> Finding:
    bad = planted(made.path, target / "bad", *changes)
    return bisect(bad, checkpoint=made.checkpoint, **{"segments": 3, "batch_size": 2, **options})


def test_a_good_bundle_loses_nothing(kv: Exported, hidden: Exported, ring: Exported) -> None:
    for made in (kv, hidden, ring):
        found = bisect(made.path, checkpoint=made.checkpoint, segments=4, batch_size=2)
        assert not found.lost and found.place is None and "Nothing is lost" in found.text
    assert verify(kv.path, kv.checkpoint, segments=2).bisect is None  # nobody asked


Planted = Callable[[Finder], tuple[Change, str]]


def weight(part: str, shape: list[int], index: object, change: float = 1.0) -> Planted:
    """One number of a weight; the node to blame is the one that uses it."""

    def plant(f: Finder) -> tuple[Change, str]:
        name = f.weight(part, shape)
        return f.edit(name, at(index, change)), f.user(name)

    return plant


def edited(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Planted:
    return lambda f: (f.edit(name, edit), f.user(name))


def behind(part: str, op: str, nth: int, node: str, *ops: tuple[str, object]) -> Planted:
    """Nodes put behind another."""
    return lambda f: (insert_after(f.nodes(part, op)[nth].name, *ops), node)


def changed(part: str, there: str, **changes: object) -> Planted:
    """Another operator or attribute of the first node of a kind."""
    return lambda f: (set_node(f.nodes(part, there)[0].name, **changes), f.nodes(part, there)[0].name)


def reshaped(part: str, shape: list[int], change: Callable[[np.ndarray], np.ndarray]) -> Planted:
    """A weight found by its shape and changed as a whole."""
    return lambda f: (f.edit(name := f.weight(part, shape), change), f.user(name))


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


KV = {
    "key weight": (
        weight("layers.1", [16, 36], (5, 13)), 0, "layer 1", "layers.1.attention", "wrong weights",
        r"layers\.1\.attention\.W_kE .*holds 1\.10\d+, expected 0\.10\d+ at \[5, 13\]; differs in 1 of 576",
    ),
    "W_1": (
        weight("layers.0", [16, 24], (5, 3)), 0, "layer 0", "layers.0.feed_forward", "wrong weights",
        r"layers\.0\.feed_forward\.W_1 ",
    ),
    "u": (
        edited("layers.0.attention.attention.u", lambda a: a * 1.01), 0, "layer 0", "layers.0.attention",
        "wrong weights", r"^u \(initializer layers\.0\.attention\.attention\.u\) is multiplied by 1\.01$",
    ),
    "embedding": (
        weight("opening", [29, 16], (ALL, 3)), 0, "embedding", "embedding", "wrong weights",
        r"embedding\.tables\.0 .*differs in 29 of 464",
    ),
    "table by one row": (
        edited(TABLE, lambda a: np.roll(a, 1, -1)), 0, "layer 1", "layers.1.attention", "wrong table",
        r"position table R · W_kR .*is shifted by \+1 row along axis 2",
    ),
    "head rounded": (
        reshaped("heads.log_probs", [16, 29], rounded), 0, "head log_probs", "softmax", "cast",
        r"embedding\.tables\.0 .* is rounded to float16",
    ),
    "cast and back": (
        behind("layers.0", "MatMul", -3, "planted_Cast_0", *HALF), 0, "layer 0", "layers.0.attention", "cast",
        r"Cast rounds to float16",
    ),
    "overflow": (
        behind(
            "layers.1", "MatMul", 1, "planted_Cast_1",
            ("Mul", np.float32(1e5)), *HALF, ("Mul", np.float32(1e-5)),
        ),
        0, "layer 1", "layers.1.attention", "overflow", r"not finite .* up to \d+ are expected, float16 ends at 65504",
    ),
    "sees the future": (
        behind("opening", "Unsqueeze", 0, "planted_Add_0", ("Add", np.int64(1))), 0, "visibility",
        "TransformerXL.visible", "mask", r"a query sees a key that it must not see in 14 of 512 pairs, .*1 after it",
    ),
    "one row too few": (
        changed("opening", "GreaterOrEqual", op="Greater"), 0, "visibility", "TransformerXL.visible", "mask",
        r"a query misses a key that it must see in 16 of 512 pairs, first query 0, its own token",
    ),
    "epsilon": (
        changed("layers.1", "LayerNormalization", epsilon=1e-2), 0, "layer 1", "layers.1.attention.norm",
        "edited graph", r"epsilon is 0\.01, expected 1e-05",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", KV)
def test_faults_of_layout_kv(kv: Exported, tmp_path: Path, fault: str) -> None:
    check_found(kv, tmp_path, *KV[fault])


def check_found(
    made: Exported, tmp_path: Path, plant: Planted, segment: int, layer: str, module: str, cause: str, reason: str
) -> None:
    """The fault that is planted is found where it is, and explained."""
    change, node = plant(Finder(made.path))
    found = searched(made, tmp_path, change)
    assert found.lost and found.place
    assert (found.segment, found.seen, found.layer) == (segment, segment, layer)
    assert (found.place.node, found.place.module) == (node, module)
    assert found.cause.name == cause and re.search(reason, found.cause.reason)
    assert found.place.share > 0.99 and found.place.difference > found.place.allowed
    assert found.others == ()  # what is handed on is no fault of the nodes after it
    assert ".py:" in found.place.source
    order = [e.part for e in found.parts]
    assert not any(e.lost for e in found.parts[: order.index(found.part)])
    assert json.loads(json.dumps(found.to_dict()))["place"]["node"] == node


RING = {
    "key weight": (
        weight("layers.1", [36, 16], (13, 5)), 0, "layer 1", "layers.1.attention", "wrong weights",
        r"layers\.1\.attention\.W_kE .*holds 1\.10\d+, expected 0\.10\d+ at \[13, 5\]; differs in 1 of 576",
    ),
    "one row too few": (
        changed("opening", "GreaterOrEqual", op="Greater"), 0, "visibility", "TransformerXL.visible", "mask",
        r"a query misses a key that it must see in \d+ of \d+ pairs, first query 0, its own token",
    ),
    "ages off by one": (
        behind("opening", "Where", 0, "planted_Add_0", ("Add", np.int64(1))), 0, "visibility", "TransformerXL.visible",
        "mask", r"a query sees a key that it must not see .*; a query misses a key",
    ),
    "distances off by one": (
        behind("opening", "Sub", -1, "planted_Add_0", ("Add", np.int64(1))), 0, "embedding", "rows of the memory",
        "edited graph", r"Add planted_Add_0 is not in the graph that the judge gives",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", RING)
def test_faults_of_layout_ring(ring: Exported, tmp_path: Path, fault: str) -> None:
    check_found(ring, tmp_path, *RING[fault])


def test_rows_written_wrong_are_blamed_on_the_call_that_wrote_them(one_trace: None, tmp_path: Path) -> None:
    """Calls of other lengths are right, also those that start within a segment, on rows that it left behind."""
    made = Exported(tmp_path / "bundle", checkpoint_of("paper"))
    export(made.checkpoint, made.path, mem_len=6, segment_lens=(1, 8), layout="ring", segment_len=21)
    plan = list(made.engine.session(2)._streams.plan(np.array([21, 21]), 21, False))
    assert {call.length for call in plan} == {1, 8} and plan[0].length != plan[-1].length

    def of_the_last(graph: onnx.GraphProto) -> None:
        if graph.input[0].type.tensor_type.shape.dim[1].dim_value == plan[-1].length:
            nodes = {n.output[0]: n for n in graph.node}
            nodes["new_key_01"].input[1] = nodes["new_value_01"].input[1]

    found = searched(made, tmp_path, of_the_last)
    first = next(call for call in plan if call.length == plan[-1].length)
    assert first.offsets[0] > 0
    assert (found.seen, found.segment, found.token, found.layer) == (0, 0, first.starts[0], "layer 1")


HIDDEN = {
    "tail weight": (
        weight("heads.log_probs", [5, 21], (2, 3)), 0, "head log_probs", "softmax", "wrong weights",
        r"embedding\.tables\.2 .*at \[2, 3\]",
    ),
    "cluster bias": (
        reshaped("heads.log_probs", [19], at(-1, 1.0)), 0, "head log_probs",
        "softmax", "wrong weights", r"softmax\.cluster_bias ",
    ),
    "projection": (
        reshaped("opening", [10, 16], lambda a: a[::-1]), 0, "embedding",
        "embedding", "wrong weights", r"embedding\.projs\.1 .*has 10 rows in another order",
    ),
    "value weight": (
        weight("layers.1", [16, 24], (3, 13)), 0, "layer 1", "layers.1.attention", "wrong weights",
        r"layers\.1\.attention\.W_v ",
    ),
    "table by two rows": (
        reshaped("layers.1", [2, 6, 10], lambda a: np.roll(a, -2, -1)), 0,
        "layer 1", "layers.1.attention", "wrong table", r"is shifted by -2 rows along axis 2",
    ),
    "table clamped": (
        reshaped("layers.1", [2, 6, 10], lambda a: a[..., np.maximum(np.arange(10), 5)]),
        0, "layer 1", "layers.1.attention", "wrong table", r"is clamped at distance 4, expected 8",
    ),
    "constant mask": (
        reshaped("opening", [4, 10], lambda a: np.roll(a, 1, -1)), 0, "visibility",
        "TransformerXL.visible", "mask", r"a query sees a key that it must not see .*key 1 after it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", HIDDEN)
def test_faults_of_layout_hidden_and_an_adaptive_softmax(hidden: Exported, tmp_path: Path, fault: str) -> None:
    plant, segment, layer, module, cause, reason = HIDDEN[fault]
    change, node = plant(Finder(hidden.path))
    found = searched(hidden, tmp_path, change)
    assert (found.segment, found.layer, found.place.node, found.place.module) == (segment, layer, node, module)
    assert found.cause.name == cause and re.search(reason, found.cause.reason), found.cause.reason


def test_the_head_that_failed_is_searched(hidden: Exported, tmp_path: Path) -> None:
    f = Finder(hidden.path)
    name = f.weight("layers.0", [16, 24])
    bad = planted(hidden.path, tmp_path / "bad")
    graph = onnx.load(bad / "target_last.L4.onnx", load_external_data=False)
    f.edit(name, at((3, 3), 1.0))(graph.graph)  # in one of the two graphs only
    onnx.save(graph, bad / "target_last.L4.onnx")
    sealed(bad)
    options = {"checkpoint": hidden.checkpoint, "segments": 3}
    assert not bisect(bad, head="log_probs", **options).lost
    found = bisect(bad, head="target@last", **options)
    assert (found.layer, found.cause.tensor) == ("layer 0", "layers.0.attention.W_kE")


def test_a_wrong_key_left_behind_is_blamed_on_the_segment_that_left_it(kv: Exported, tmp_path: Path) -> None:
    nodes = {n.output[0]: n for n in Finder(kv.path).graph.node}
    key, value = nodes["new_key_01"], nodes["new_value_01"]
    found = searched(kv, tmp_path, set_node(key.name, inputs={0: value.input[0]}))
    assert (found.seen, found.segment, found.token, found.layer) == (1, 0, 0, "layer 1")
    assert found.place.node == key.name and found.cause.name == "edited graph"
    assert "Segment 1 is the first out of tolerance" in found.text
    assert f"gets other inputs than in the judge's graph: {value.input[0]}" in found.text


def test_a_wrong_first_memory(hidden: Exported, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    bad = planted(hidden.path, tmp_path / "bad")
    rows = load_file(bad / "initial.safetensors")
    save_file(rows | {"mem_01": rows["mem_01"] + 1}, bad / "initial.safetensors")
    found = bisect(sealed(bad), checkpoint=hidden.checkpoint, segments=2)
    assert (found.layer, found.place, found.cause.name) == ("layer 1", None, "first memory")
    assert "first rows of mem_01 are float32 [1, 1], expected float32 [0, 0]" in found.text


def test_graphs_that_tools_have_rewritten(kv: Exported, tmp_path: Path) -> None:
    f = Finder(kv.path)
    name = f.weight("layers.1", [16, 24])
    wrong = f.edit(name, at((5, 3), 1.0))
    found = searched(kv, tmp_path / "names", wrong, nameless)
    assert (found.layer, found.place.op_type, found.cause.tensor) == ("layer 1", "MatMul", "layers.1.feed_forward.W_1")
    assert re.fullmatch(r"n\d+", found.place.node)

    norm = f.nodes("layers.1", "LayerNormalization")[0].name
    found = searched(kv, tmp_path / "epsilon", set_node(norm, epsilon=1e-2), nameless)
    assert (found.layer, found.place.op_type, found.cause.name) == ("layer 1", "LayerNormalization", "edited graph")

    bad = planted(kv.path, tmp_path / "fused", wrong)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(bad / "new.onnx"), 4
    ort.InferenceSession(bad / f.file.name, options, providers=["CPUExecutionProvider"])
    shutil.move(bad / "new.onnx", bad / f.file.name)
    assert any(n.domain for n in Finder(sealed(bad)).graph.node)  # fused operators
    found = bisect(bad, checkpoint=kv.checkpoint, segments=2)
    assert (found.layer, found.cause.tensor) == ("layer 1", "layers.1.feed_forward.W_1")


def test_a_whole_graph_in_half_precision(kv: Exported, tmp_path: Path) -> None:
    found = searched(kv, tmp_path, Finder(kv.path).to_half)
    assert found.cause.name == "cast" and re.search(r"as are (\d+) of the graph's \1 floating", found.cause.reason)
    assert found.layer == "embedding" and found.place.found.dtype == "float16"


def test_weights_in_int8(kv: Exported, tmp_path: Path) -> None:
    f = Finder(kv.path)
    name = f.weight("layers.0", [16, 24])

    def quantise(graph: onnx.GraphProto) -> None:
        old = next(t for t in graph.initializer if t.name == name)
        numbers = f._read(old)
        step = np.float32(np.abs(numbers).max() / 127)
        graph.initializer.append(numpy_helper.from_array(np.round(numbers / step).astype(np.int8), "small"))
        graph.initializer.append(numpy_helper.from_array(step, "step"))
        graph.node.insert(0, helper.make_node("DequantizeLinear", ["small", "step"], [f"{name}_wide"], "dequantise"))
        user = next(n for n in graph.node if name in n.input)
        user.input[1] = f"{name}_wide"

    found = searched(kv, tmp_path, quantise)
    assert (found.layer, found.place.node, found.cause.name) == ("layer 0", "dequantise", "cast")
    assert "layers.0.feed_forward.W_1" in found.cause.reason and "int8" in found.cause.reason


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[set[str]], bool]], None]:
    """Let ONNX Runtime get one operator wrong by 1 %: of the node named, when its outputs meet the condition."""
    real = ort.InferenceSession

    def install(node: str, when: Callable[[set[str]], bool]) -> None:
        def load(source: object, options: ort.SessionOptions, **more: object) -> ort.InferenceSession:
            model = (
                onnx.load_from_string(source)
                if isinstance(source, bytes)
                else onnx.load(source, load_external_data=False)
            )
            if not isinstance(source, bytes):
                key = "session.model_external_initializers_file_folder_path"
                options.add_session_config_entry(key, str(Path(source).parent))
            if when({o.name for o in model.graph.output}):
                insert_after(node, ("Mul", np.float32(1.01)))(model.graph)
            return real(model.SerializeToString(), options, **more)

        monkeypatch.setattr(ort, "InferenceSession", load)

    return install


def test_an_operator_that_the_backend_gets_wrong(kv: Exported, tmp_path: Path, faulty: Callable[..., None]) -> None:
    node = Finder(kv.path).nodes("layers.1", "Softmax")[0].name
    faulty(node, lambda outputs: True)
    found = searched(kv, tmp_path)
    assert (found.layer, found.place.node, found.cause.name) == ("layer 1", node, "operator")
    assert "the backend's Softmax is off by 0.01" in found.cause.reason


def test_an_error_that_only_merged_nodes_have(kv: Exported, tmp_path: Path, faulty: Callable[..., None]) -> None:
    softmax = Finder(kv.path).nodes("layers.1", "Softmax")[0]
    faulty(softmax.name, lambda outputs: "layers.0/new_h" not in outputs)
    found = searched(kv, tmp_path / "across")
    assert (found.layer, found.cause.name) == ("layer 0", "operator") and "layers.0/new_h" in found.cause.reason
    faulty(softmax.name, lambda outputs: softmax.output[0] not in outputs)
    found = searched(kv, tmp_path / "inside")
    assert (found.layer, found.cause.name) == ("layer 1", "operator") and "may merge" in found.cause.reason


def test_traced_code_that_is_not_the_reference(kv: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txl_export.reference.attention.relative_shift", lambda x: x)
    found = searched(kv, tmp_path)
    assert (found.layer, found.place, found.cause.name) == ("layer 0", None, "tracing")


def test_memory_that_the_runtime_loses(kv: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = OnnxRuntimeStreams.call

    def forgetful(self: OnnxRuntimeStreams, *args: object) -> None:
        call(self, *args)
        self._slots[self._now]["value_01"][:, :, -2] = 0

    monkeypatch.setattr(OnnxRuntimeStreams, "call", forgetful)
    found = searched(kv, tmp_path)
    assert (found.seen, found.segment, found.cause.name) == (1, 0, "memory fed back")
    assert "value_01" in found.cause.reason


def test_small_errors_that_add_up_are_said_to(kv: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "_examine", lambda *args: None)  # as if every call were within rounding
    change, _ = KV["W_1"][0](Finder(kv.path))
    assert searched(kv, tmp_path, change).cause.name == "accumulation"


def test_bad_input_is_one_line(kv: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as e:
        bisect(kv.path)  # made of a checkpoint that is nowhere on disk
    assert "--checkpoint" in one_line(e.value)
    monkeypatch.setattr("txl_export.verification.bisection.probe.PROBES", {"another": None})
    change, _ = KV["W_1"][0](Finder(kv.path))
    with pytest.raises(InputError) as e:
        searched(kv, tmp_path, change)
    assert "shows no intermediate values" in one_line(e.value)


def test_on_the_command_line(kv: Exported, tmp_path: Path) -> None:
    native.save(tmp_path / "model", checkpoint_of("paper"))
    f = Finder(kv.path)
    node = f.nodes("layers.1", "MatMul")[-1].name

    def marked(graph: onnx.GraphProto) -> None:
        next(n for n in graph.node if n.name == node).name = "[red]node"

    bad = planted(kv.path, tmp_path / "bad", f.edit(f.weight("layers.1", [24, 16]), at((ALL, 3), 1.0)), marked)
    args = ["verify", str(bad), "--checkpoint", str(tmp_path / "model"), "--segments", "2", "--bisect"]
    told = CliRunner().invoke(main, args)
    assert told.exit_code == 1
    text = " ".join(told.stdout.split())
    assert "The first node to blame is [red]node (MatMul) of layers.1.feed_forward" in text
    assert re.search(r"layers\.1 layers\.1/new_h \S+ \S+ lost", text)
    assert told.stderr.count("\n") == 1 and "; accuracy is lost at [red]node (MatMul" in told.stderr
    value = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    assert value["bisect"]["place"]["node"] == "[red]node" and value["bisect"]["cause"]["name"] == "wrong weights"
    good = ["verify", str(kv.path), *args[2:]]
    told = CliRunner().invoke(main, good)
    assert told.exit_code == 0 and "Nothing is lost" in told.stdout
