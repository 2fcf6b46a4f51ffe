"""What ONNX Runtime's sessions of a bundle hold: which have a copy of the weights, and what is kept during a call."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.bundles import Exported, ExportFixture
from tests.helpers import random_ids
from txl_export import Engine


@pytest.fixture
def bundle(exported: ExportFixture) -> Exported:
    return exported("sliding", segment_lens=(1, 8))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ort.SessionOptions]]:
    """The files that ONNX Runtime loads from now on, and how."""
    seen: list[tuple[str, ort.SessionOptions]] = []
    real = ort.InferenceSession

    def load(path, options, **rest):
        seen.append((path.name, options))
        return real(path, options, **rest)

    monkeypatch.setattr(ort, "InferenceSession", load)
    return seen


def packed(options: ort.SessionOptions) -> bool:
    try:
        return bool(options.get_session_config_entry("session.disable_prepacking") != "1")
    except RuntimeError:  # it has no such entry
        return True


def test_one_token_of_one_stream_reads_the_mapped_weights(bundle, loaded):
    engine = Engine.load(bundle.path, threads=1)
    one, two = engine.session(1), engine.session(2)
    ids = random_ids(bundle.config, 1, 9)
    first = [one.feed(ids[:, :8]), one.feed(ids[:, 8:])]
    both = [two.feed(np.repeat(ids[:, :8], 2, 0)), two.feed(np.repeat(ids[:, 8:], 2, 0))]
    assert [(name, packed(options)) for name, options in loaded] == [
        ("log_probs.L8.onnx", True),  # of both sessions
        ("log_probs.L1.onnx", False),
        ("log_probs.L1.onnx", True),
    ]
    for a, b in zip(first, both, strict=True):
        np.testing.assert_allclose(b, np.repeat(a, 2, 0), atol=1e-5)


def test_preparing_loads_what_the_call_needs(bundle, loaded):
    engine = Engine.load(bundle.path, threads=1)
    for batch_size in (1, 2):
        engine.model.prepare("log_probs", 1, batch_size)
    count = len(loaded)
    assert [packed(options) for _, options in loaded] == [False, True]
    for batch_size in (1, 2):
        engine.session(batch_size).feed(random_ids(bundle.config, batch_size, 1))
    assert len(loaded) == count


def test_a_call_holds_the_new_memory_of_one_layer_at_a_time(bundle, loaded):
    """By the usual order it is cut when all layers are done; a pattern of allocations would then hold it twice."""
    Engine.load(bundle.path, threads=1).session().feed(random_ids(bundle.config, 1, 1))
    ((_, options),) = loaded
    assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED and not options.enable_mem_pattern


@pytest.mark.parametrize(("asked", "expected"), [(None, {1: False, 8: True}), (False, {}), (True, {1: True, 8: True})])
def test_packing_is_chosen_or_asked_for(exported, loaded, asked, expected):
    """By default the longest calls and single tokens of several streams; threads never wait beyond a call."""
    engine = Engine.load(exported("sliding", "ring", (1, 4, 8)).path, threads=1, packed=asked)
    session = engine.session(1)
    for n in (1, 4, 8):
        session.feed(np.ones((1, n), np.int64), segment_len=n)
    found = {name: packed(options) for name, options in loaded}
    assert found == {f"log_probs.L{n}.onnx": expected.get(n, asked is True) for n in (1, 4, 8)}
    engine.session(2).feed([[1], [2]])
    assert packed(loaded[-1][1]) == (asked is not False)
    assert {o.get_session_config_entry("session.force_spinning_stop") for _, o in loaded} == {"1"}
