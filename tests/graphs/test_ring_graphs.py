"""Graphs of layout `ring`: who touches the memory, before and after ONNX Runtime has optimised them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from tests.bundles import RING_LENS, Exported, ExportFixture, exported_ring
from txl_export.bundle import WEIGHTS, Bundle, Manifest

# What would copy or rearrange rows.
MOVERS = {
    "Slice",
    "Transpose",
    "Concat",
    "Split",
    "Pad",
    "Cast",
    "Identity",
    "Reshape",
    "Gather",
    "ScatterND",
    "Loop",
    "If",
}


@pytest.fixture
def bundle(exported: ExportFixture) -> Exported:
    return exported_ring(exported)


@pytest.fixture
def manifest(bundle: Exported) -> Manifest:
    return Bundle.open(bundle.path).manifest


def graph_of(path: Path) -> onnx.GraphProto:
    return onnx.load(path, load_external_data=False).graph


def optimised(bundle: Exported, length: int, rows: int, folder: Path) -> onnx.GraphProto:
    """What ONNX Runtime makes of a graph for so many rows of two streams, as a session has it."""
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("rows", rows)
    options.add_free_dimension_override_by_name("batch", 2)
    options.optimized_model_filepath = str(folder / "graph.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(bundle.path / f"log_probs.L{length}.onnx", options, providers=["CPUExecutionProvider"])
    return graph_of(folder / "graph.onnx")


def users(graph: onnx.GraphProto, name: str) -> Counter[str]:
    return Counter(n.op_type for n in graph.node for i in n.input if i == name)


def dims(graph: onnx.GraphProto) -> dict[str, list[int | str]]:
    values = [*graph.input, *graph.output, *graph.value_info]
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


@pytest.mark.parametrize("length", RING_LENS)
def test_only_the_write_consumes_the_old_memory(bundle, manifest, length):
    """So that it can be made in place; others ask for its shape at most."""
    graph = graph_of(bundle.path / f"log_probs.L{length}.onnx")
    made = {o: n for n in graph.node for o in n.output}
    assert len(manifest.aliases) == 2 * bundle.config.n_layer
    for new, old in manifest.aliases.items():
        consumers = users(graph, old)
        assert consumers.pop("TensorScatter") == 1 and set(consumers) <= {"Shape"}
        node = made[new]
        assert node.op_type == "TensorScatter" and node.input[0] == old
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert attributes["mode"] == b"linear" and attributes["axis"] in (-2, 2)
        assert sum(users(graph, new).values()) == 1  # by the attention, which reads it where it is


@pytest.mark.parametrize("length", RING_LENS)
def test_nothing_moves_rows_in_the_optimised_graph(bundle, manifest, length, tmp_path):
    rows = manifest.rows
    graph = optimised(bundle, length, rows, tmp_path)
    shapes = dims(graph)
    for new, old in manifest.aliases.items():
        assert shapes[old] == shapes[new] == [2, 2, rows, 6]
        assert users(graph, old) == {"TensorScatter": 1}
        assert sum(users(graph, new).values()) == 1
    touching = [n for n in graph.node if any(rows in shapes.get(v, ()) for v in [*n.input, *n.output])]
    assert not {n.op_type for n in touching} & MOVERS, [n.name for n in touching if n.op_type in MOVERS]
    per_layer = Counter(n.op_type for n in touching if n.name.startswith("layers."))
    assert {op: n / bundle.config.n_layer for op, n in per_layer.items()} == {
        "TensorScatter": 2, "Attention": 1, "GatherElements": 1, "Add": 1,
    }  # fmt: skip


@pytest.mark.parametrize("rows", [30, 22])
def test_position_tables_are_cut_to_a_session_once(bundle, rows, tmp_path):
    """At loading: a shorter memory's session multiplies as many columns as its ring has rows, and slices nothing."""
    graph = optimised(bundle, 1, rows, tmp_path)
    assert not [n.name for n in graph.node if n.op_type in ("Slice", "Shape", "Range")]
    places = [n for n in graph.node if n.op_type == "GatherElements"]
    assert [dims(graph)[n.input[0]][-1] for n in places] == [rows - 7] * bundle.config.n_layer


def test_one_token_needs_no_shift(bundle, manifest, tmp_path):
    """A score's place in the table is looked up: nothing is padded, cut or transposed."""
    ops = {n.op_type for n in optimised(bundle, 1, manifest.rows, tmp_path).node}
    assert "GatherElements" in ops and not ops & {"Pad", "Concat", "Transpose"}


def test_graphs_share_weights_and_tables(bundle):
    """Every graph's large constants are the same bytes of the same file, which holds nothing else."""
    places = []
    for length in RING_LENS:
        graph = graph_of(bundle.path / f"log_probs.L{length}.onnx")
        external = [{e.key: e.value for e in i.external_data} for i in graph.initializer if i.external_data]
        assert {e["location"] for e in external} == {WEIGHTS}
        places.append({(int(e["offset"]), int(e["length"])) for e in external})
        tables = [i for i in graph.initializer if "positions" in i.name and i.external_data]
        assert len(tables) == bundle.config.n_layer
    assert places[0] == places[1] == places[2]
    assert max(start + size for start, size in places[0]) == (bundle.path / WEIGHTS).stat().st_size


def test_the_position_table_has_a_row_for_each_distance_or_those_up_to_clamp_len(exported, bundle, manifest):
    half = exported_ring(exported, "sliding", "fp16")
    for model, columns in ((bundle, manifest.ring), (half, model_clamp(half) + 1)):
        graph = graph_of(model.path / "log_probs.L1.onnx")
        assert {tuple(i.dims)[-1] for i in graph.initializer if i.name.endswith("positions.table")} == {columns}


def model_clamp(model: Exported) -> int:
    return model.config.clamp_len
