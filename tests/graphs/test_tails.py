"""Heads `target` and `top_k` compute a tail cluster for the positions that need it, and lose nothing by it."""

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.bundles import checkpoint_of
from tests.helpers import random_ids
from txl_export import Engine, export
from txl_export.bundle import WEIGHTS

SEGMENT = 8


def adapted(bias, name="adaptive"):
    """The model with another bias of its clusters: how likely tails are at all."""
    found = checkpoint_of(name)
    weights = dict(found.weights)
    weights["softmax.cluster_bias"] = np.full_like(weights["softmax.cluster_bias"], bias)
    return dataclasses.replace(found, weights=weights)


@pytest.fixture(scope="module")
def exported_with(tmp_path_factory):
    """exported_with(bias, k, head): a bundle of `adapted` with this head, made once."""
    made = {}

    def get(bias, k=3, head="top_k"):
        key = (bias, k, head)
        if key not in made:
            folder = tmp_path_factory.mktemp("tails")
            made[key] = export(adapted(bias), folder, segment_lens=(f"1-{SEGMENT}",), layout="kv", head=head, top_k=k)
        return made[key]

    return get


def rows_computed(bundle, head, folder, targets=None):
    """How many positions of [2, SEGMENT] the graph computes each tail for, on random tokens."""
    name = f"{head}.L1-{SEGMENT}.onnx"
    model = onnx.load(bundle.path / name, load_external_data=False)
    choices = [n.output[0] for n in model.graph.node if n.op_type == "NonZero"]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(c) for c in choices)
    (folder / name).write_bytes(model.SerializeToString())
    (folder / WEIGHTS).write_bytes((bundle.path / WEIGHTS).read_bytes())
    session = onnxruntime.InferenceSession(folder / name)
    inputs = {"positions": np.zeros(2, np.int64)} | ({} if targets is None else {"targets": targets})
    inputs["input_ids"] = random_ids(bundle.manifest.config, 2, SEGMENT)
    sizes = {v.name: [2 if n == "batch" else n for n in v.shape] for v in session.get_inputs()}
    inputs |= {name: np.zeros(shape, np.float32) for name, shape in sizes.items() if name not in inputs}
    return [a.shape[1] for a in session.run(choices, inputs)]


def test_target_computes_the_clusters_of_its_targets(exported_with, tmp_path):
    bundle = exported_with(-1.0, head="target")
    ends = bundle.manifest.config.cluster_ends
    targets = np.full((2, SEGMENT), ends[1] - 1)
    assert rows_computed(bundle, "target", tmp_path, targets) == [0, 0]
    targets[1, :3], targets[0, 2] = ends[2], ends[3] - 1
    assert rows_computed(bundle, "target", tmp_path, targets) == [0, 4]
    targets[1, 0] = ends[1]
    assert rows_computed(bundle, "target", tmp_path, targets) == [1, 3]


def test_top_k_computes_tails_that_may_hold_one_of_the_best(exported_with, tmp_path):
    everything = 2 * SEGMENT
    assert rows_computed(exported_with(-30.0), "top_k", tmp_path) == [0, 0]
    assert rows_computed(exported_with(30.0), "top_k", tmp_path) == [everything, everything]
    some = rows_computed(exported_with(-1.0), "top_k", tmp_path)
    assert all(0 < n < everything for n in some)


@pytest.mark.parametrize("bias, k", [(-30.0, 3), (30.0, 3), (2.0, 18), (-1.0, 61)])
def test_the_best_are_those_of_a_sort_of_all(exported_with, bias, k):
    """The shortlist has 17 words, the tails 23 and 21: k may be more than a cluster holds."""
    ours = Engine.load(exported_with(bias, k), threads=1).session(2)
    full = Engine.load(adapted(bias), backend="eager", segment_len=SEGMENT).session(2)
    for i, length in enumerate((SEGMENT, 1, 5)):
        ids = random_ids(ours.info.config, 2, length, seed=i)
        best, everything = ours.feed(ids), full.feed(ids, head="log_probs")
        expected = -np.sort(-everything, axis=-1)[..., :k]
        np.testing.assert_allclose(best.log_probs, expected, atol=1e-4, rtol=0)
        # Equals may stand in another order: what each token is said to have, it has, and none is named twice.
        np.testing.assert_allclose(best.log_probs, np.take_along_axis(everything, best.ids, -1), atol=1e-4, rtol=0)
        assert all(len(set(row)) == k for row in best.ids.reshape(-1, k).tolist())
