"""Where a bundle of a half precision loses accuracy: faults are told from rounding, and overflow is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bundles import Exported
from tests.graphs.test_half import dangerous, exported_once
from tests.helpers import random_ids
from tests.verification.planting import Finder, planted
from txl_export import verify
from txl_export.precision import PrecisionPolicy


def at(index: tuple[int, int], change: float):
    def edit(array: np.ndarray) -> np.ndarray:
        array[index] += change
        return array

    return edit


@pytest.mark.parametrize(
    ("layout", "lens", "part", "shape", "where"),
    [("kv", ("1-8",), "layers.1", [16, 36], "attention"), ("ring", (1, 8), "layers.0", [16, 24], "feed_forward")],
)
def test_a_wrong_weight_is_told_from_rounding(exported, tmp_path, layout, lens, part, shape, where):
    made: Exported = exported("paper", layout, lens, precision="fp16")
    finder = Finder(made.path)
    name = finder.weight(part, shape)
    bad = planted(made.path, tmp_path / "bad", finder.edit(name, at((5, 13), 3.0)))
    ids = random_ids(made.config, 1, 300, seed=1)
    assert verify(made.path, made.checkpoint, ids=ids, segments=20, bisect=True).bisect.lost is False
    found = verify(bad, made.checkpoint, ids=ids, segments=20, bisect=True).bisect
    assert (found.cause.name, found.part, found.place.module) == ("wrong weights", part, f"{part}.{where}")
    assert found.place.node == finder.user(name)
    assert found.others == ()  # all that rounds like its type is right


def test_overflow_shows_in_the_typed_module(tmp_path: Path):
    """The feed-forward layer of layer 1 passes 65,504; ONNX Runtime, which computes in fp32 inside, shows nothing."""
    checkpoint = dangerous()
    naive = exported_once(tmp_path / "naive", checkpoint, calibration=PrecisionPolicy.uniform("fp16"), layout="kv")
    ids = random_ids(checkpoint.config, 2, 100, seed=7)
    report = verify(naive, checkpoint, ids=ids, batch_size=2, segments=10, backend="typed", bisect=True)
    assert not report.passed
    assert (report.bisect.part, report.bisect.cause.name) == ("layers.1", "overflow")
    assert report.bisect.place.module == "layers.1.feed_forward.norm"
    assert verify(naive, checkpoint, ids=ids, batch_size=2, segments=10).passed


def test_a_wrong_weight_is_told_from_the_rounding_of_few_bits(exported, tmp_path):
    made: Exported = exported("paper", "kv", ("1-8",), precision="int8")
    ids = random_ids(made.config, 1, 300, seed=1)
    assert verify(made.path, made.checkpoint, ids=ids, segments=20, bisect=True).bisect.lost is False
    finder = Finder(made.path)
    name = finder.weight("layers.1", [24, 1, 16])  # the whole numbers of W_1
    bad = planted(made.path, tmp_path / "bad", finder.edit(name, lambda codes: codes[::-1]))
    found = verify(bad, made.checkpoint, ids=ids, segments=20, bisect=True).bisect
    assert (found.cause.name, found.part, found.place.module) == ("wrong weights", "layers.1", "layers.1.feed_forward")
    assert (found.place.node, found.cause.constant) == (finder.user(name), name)
    assert found.others == ()  # operands that are rounded are no fault
