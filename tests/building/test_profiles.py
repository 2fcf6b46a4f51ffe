from __future__ import annotations

import dataclasses

import pytest

from tests.bundles import one_line
from txl_export.building.profiles import BatchRange, check_profiles, make_profiles
from txl_export.bundle import Bundle, TensorSpec
from txl_export.engines import InputProfile
from txl_export.errors import BuildError, InputError


@pytest.fixture
def manifest(exported):
    return Bundle.open(exported("stepping", "kv", (1, 8)).path, check_files=False).manifest


def test_all_inputs_get_their_shapes_from_one_batch_and_one_length(manifest):
    graph = next(g for g in manifest.graphs if not g.segment.fixed)
    shapes = {p.name: p.shapes for p in make_profiles(manifest, graph, BatchRange(1, 2, 4))}
    assert shapes["input_ids"] == ((1, 1), (2, 8), (4, 8))
    assert shapes["positions"] == ((1,), (2,), (4,))
    assert shapes["key_01"] == shapes["value_00"] == ((1, 2, 12, 6), (2, 2, 12, 6), (4, 2, 12, 6))


@pytest.mark.parametrize("cut, usual", [(3, 3), (1, 1), (8, 8)])
def test_a_range_is_optimised_for_the_length_that_feeds_are_cut_into(manifest, cut, usual):
    graph = next(g for g in manifest.graphs if not g.segment.fixed)
    shorter = dataclasses.replace(manifest, segment_len=cut)
    assert make_profiles(shorter, graph, BatchRange(1, 1, 1))[0].opt == (1, usual)


def test_a_cut_outside_a_range_takes_its_nearest_end(manifest):
    graph = dataclasses.replace(manifest.graphs[0], segment=type(manifest.graphs[0].segment)(2, 4))
    assert make_profiles(manifest, graph, BatchRange(1, 1, 1))[0].opt == (1, 4)


@pytest.mark.parametrize("value, batch", [("1:2:8", (1, 2, 8)), (4, (4, 4, 4)), (" 1 : 1 : 2 ", (1, 1, 2))])
def test_batches_are_read(value, batch):
    assert dataclasses.astuple(BatchRange.parse(value)) == batch


@pytest.mark.parametrize("value", ["1:2", "a:b:c", "", "1:2:3:4", "-1", "1:2:99999999999"])
def test_batches_that_cannot_be_read(value):
    with pytest.raises(InputError, match="MIN:OPT:MAX"):
        BatchRange.parse(value)


@pytest.mark.parametrize(
    "batch, says", [("2:1:8", "rise"), ("0:1:1", "rise"), ("1:9:8", "rise"), ("1:1:17", "most 16")]
)
def test_batches_that_cannot_be_had(batch, says):
    with pytest.raises(InputError) as e:
        BatchRange.parse(batch).check(16)
    assert says in one_line(e.value) and batch in str(e.value)


IDS, MEMORY = TensorSpec("input_ids", "int64", ("batch", "segment")), TensorSpec("key_00", "float32", ("batch", 2, 6))


def profile(name: str, *shapes: tuple[int, ...]) -> InputProfile:
    return InputProfile(name, *shapes)


@pytest.mark.parametrize(
    "memory, says",
    [
        (((1, 2, 6), (1, 2, 6), (4, 2, 6)), "disagree on batch: input_ids has 1:1:8, key_00 1:1:4"),
        (((1, 2, 7), (1, 2, 7), (8, 2, 7)), "7:7:7 on axis 2, the graph 6"),
        (((4, 2, 6), (1, 2, 6), (8, 2, 6)), "falls on axis 0: 4:1:8"),
        (((1, 2), (1, 2), (8, 2)), "another rank"),
        (None, "key_00 has no profile"),
    ],
)
def test_profiles_that_no_call_fits(memory, says):
    """What TensorRT lets pass, or refuses in other words."""
    ids = profile("input_ids", (1, 1), (1, 4), (8, 8))
    given = [ids, profile("key_00", *memory)] if memory else [ids]
    with pytest.raises(BuildError) as e:
        check_profiles(given, [IDS, MEMORY])
    assert says in one_line(e.value)
