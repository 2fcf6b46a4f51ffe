"""Clusters that are rows of one table: in the file they are the table's bytes, in the graph weights of their own."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.helpers import random_checkpoint, tiny_config
from txl_export import Engine, export
from txl_export.bundle import WEIGHTS
from txl_export.config import Dialect

D, CUTOFFS, V = 12, (10000, 50000), 70000  # large enough that no tracer folds them


def _place(tensor: onnx.TensorProto) -> range:
    told = {e.key: e.value for e in tensor.external_data}
    start = int(told["offset"])
    return range(start, start + int(told["length"]))


def test_clusters_of_one_table_are_stored_with_it(tmp_path: Path):
    config = tiny_config(n_layer=1, vocab_size=V, cutoffs=CUTOFFS, d_embed=D, same_length=True)
    checkpoint = random_checkpoint(config, Dialect(cluster_order="reversed"), std=0.3)
    heads = ("target", "log_probs@last")
    bundle = export(checkpoint, tmp_path / "out", segment_lens=(4,), layout="kv", cover=False, head=heads)
    graph = onnx.load(bundle.path / "target.L4.onnx", load_external_data=False).graph
    weights = {t.name: t for t in graph.initializer}
    assert set(weights) <= {name for node in graph.node for name in node.input}
    assert [n.name for n in graph.node if n.op_type == "Slice" and n.input[0] in weights] == []
    clusters = {n.rpartition(".")[2]: _place(t) for n, t in weights.items() if ".embedding.tables.0." in n}
    table = _place(weights["opening.embedding.reference.tables.0"])
    row = 4 * D
    assert len(table) == V * row
    assert clusters == {
        f"{a}-{b}": range(table.start + a * row, table.start + b * row)
        for a, b in ((0, 10000), (10000, 50000), (50000, V))
    }
    # One copy of everything, whatever the number of heads; every tensor starts a page.
    size = (bundle.path / WEIGHTS).stat().st_size
    assert size < sum(w.nbytes for w in checkpoint.weights.values()) + 4096 * len(weights) + 10_000
    ids, targets = [[1, 10001, 50001, 69999]], [[0, 49999, 50000, 9999]]
    ours, judge = (Engine.load(m).session() for m in (bundle, checkpoint))
    found, expected = (s.feed(ids, segment_len=4, head="target", targets=targets) for s in (ours, judge))
    assert abs(found - expected).max() < 1e-4
