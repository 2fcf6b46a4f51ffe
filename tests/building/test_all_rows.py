"""Graphs whose heads compute all rows give what the graphs that choose rows give."""

import shutil

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import random_ids
from txl_export.building.all_rows import with_all_rows
from txl_export.bundle import WEIGHTS
from txl_export.errors import EnvironmentMismatch


@pytest.fixture
def bundle(exported):
    return exported("adaptive", "kv", (1, "1-8"), ("target", "top_k", "target@last"))


@pytest.mark.parametrize("name", ["target.L1", "target.L1-8", "top_k.L1", "top_k.L1-8", "target_last.L1-8"])
def test_both_forms_agree(bundle, tmp_path, name):
    file = bundle.path / f"{name}.onnx"
    dense = with_all_rows(file.read_bytes())
    chosen = [n.op_type for n in onnx.load(file, load_external_data=False).graph.node].count("NonZero")
    left = [n.op_type for n in onnx.load_model_from_string(dense).graph.node].count("NonZero")
    assert (chosen, left) == (bundle.config.n_tails, 0)
    (tmp_path / file.name).write_bytes(dense)
    shutil.copy(bundle.path / WEIGHTS, tmp_path)
    inputs = random_inputs(bundle, 1 if name.endswith("L1") else 8, file)
    for a, b in zip(run(file, inputs), run(tmp_path / file.name, inputs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)


def random_inputs(bundle, length, file):
    session = onnxruntime.InferenceSession(file)
    rng = np.random.default_rng(5)
    inputs = {}
    for wanted in session.get_inputs():
        shape = [{"batch": 3, "segment": length}.get(n, n) for n in wanted.shape]
        if wanted.name in ("input_ids", "targets"):
            inputs[wanted.name] = random_ids(bundle.config, *shape, seed=len(wanted.name))
        elif wanted.name == "positions":
            inputs[wanted.name] = np.array([0, 3, 40])
        else:
            inputs[wanted.name] = rng.standard_normal(shape).astype(np.float32)
    return inputs


def run(file, inputs):
    return onnxruntime.InferenceSession(file).run(None, inputs)


def test_others_are_left_as_they_are(bundle, exported):
    plain = (exported("plain", "hidden", ("1-8",)).path / "log_probs.L1-8.onnx").read_bytes()
    assert with_all_rows(plain) is plain
    junk = b"NonZero is in this, and it is no graph"
    assert with_all_rows(junk) == junk


def test_what_is_missing_is_named(bundle, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(EnvironmentMismatch, match=r"target or top_k.*'onnx'.*export"):
        with_all_rows((bundle.path / "target.L1.onnx").read_bytes())
