from __future__ import annotations

import dataclasses

import pytest

from tests.bundles import one_line
from txl_export.building.network import Network, check_network, check_size
from txl_export.bundle import Bundle, TensorSpec
from txl_export.errors import BuildError
from txl_export.precision import JOINTS, MEMORY, Choice, PrecisionPolicy, tensor_names


@pytest.fixture
def manifest(exported):
    return Bundle.open(exported("stepping", "kv", (1, 8)).path, check_files=False).manifest


def parsed(manifest, **changes) -> Network:
    """What a parser makes of the first graph."""
    graph = manifest.graphs[0]
    inputs, outputs = (
        tuple(TensorSpec(t.name, t.dtype, tuple(_number(n, manifest) for n in t.shape)) for t in tensors)
        for tensors in (manifest.inputs(graph), manifest.outputs(graph))
    )
    return dataclasses.replace(Network(inputs, outputs, manifest.aliases, {"fp32": 20}, 10_000), **changes)


def _number(n: int | str, manifest) -> int:
    return {"rows": manifest.rows}.get(n, -1) if isinstance(n, str) else n


def refused(network: Network, manifest) -> str:
    with pytest.raises(BuildError) as e:
        check_network(network, manifest, manifest.graphs[0], "the graph")
    return one_line(e.value)


def test_the_graph_itself_in_any_order(manifest):
    network = parsed(manifest)
    check_network(network, manifest, manifest.graphs[0], "the graph")
    turned = dataclasses.replace(network, inputs=network.inputs[::-1], outputs=network.outputs[::-1])
    check_network(turned, manifest, manifest.graphs[0], "the graph")


def test_what_is_not_the_manifests(manifest):
    network = parsed(manifest)
    first, *rest = network.inputs
    half = dataclasses.replace(rest[1], dtype="float16")
    fixed = dataclasses.replace(first, shape=(3, 1))
    assert "input key_00 is float16" in refused(dataclasses.replace(network, inputs=(first, rest[0], half)), manifest)
    assert "input input_ids is int64 [3, 1]" in refused(dataclasses.replace(network, inputs=(fixed, *rest)), manifest)
    assert "input value_01 is absent" in refused(dataclasses.replace(network, inputs=network.inputs[:-1]), manifest)
    more = (*network.outputs, TensorSpec("extra", "float32", (-1,)))
    assert "output extra is float32 [-1]" in refused(dataclasses.replace(network, outputs=more), manifest)


def test_shapes_of_outputs_may_be_open_those_of_inputs_not(manifest):
    network = parsed(manifest)
    opened = tuple(dataclasses.replace(t, shape=(-1,) * len(t.shape)) for t in network.outputs)
    check_network(dataclasses.replace(network, outputs=opened), manifest, manifest.graphs[0], "the graph")
    first = dataclasses.replace(network.inputs[0], shape=(-1, -1))
    assert "input_ids" in refused(dataclasses.replace(network, inputs=(first, *network.inputs[1:])), manifest)
    longer = tuple(dataclasses.replace(t, shape=(*t.shape, -1)) for t in network.outputs)
    assert "output" in refused(dataclasses.replace(network, outputs=longer), manifest)


def test_updates_in_place_are_those_that_the_manifest_says(manifest):
    network = parsed(manifest)
    unasked = dataclasses.replace(network, aliases={"new_key_00": "key_00"})
    assert "updates key_00 in place, the manifest says nothing" in refused(unasked, manifest)
    ring = dataclasses.replace(manifest, layout="ring")
    found = parsed(ring)
    check_network(found, ring, ring.graphs[0], "the graph")
    assert "updates nothing in place, the manifest says 4 inputs" in refused(
        dataclasses.replace(found, aliases={}), ring
    )
    longer = dataclasses.replace(ring, mem_len=ring.mem_len + 1)
    assert f"input key_00 is float32 [-1, 2, {ring.rows}, 6]" in refused(found, longer)


def test_precision_is_the_policys(manifest):
    half = dataclasses.replace(manifest, policy=PrecisionPolicy("fp16"))
    assert "fp16, none of its matrix products is (20 in fp32)" in refused(parsed(half), half)
    check_network(parsed(half, products={"fp16": 1, "fp32": 19}), half, half.graphs[0], "the graph")
    assert "the bundle is fp32, 3 matrix products are in fp16" in refused(
        parsed(manifest, products={"fp32": 20, "fp16": 3}), manifest
    )
    kept = {n: Choice("fp32") for n in tensor_names(2) if n not in (*JOINTS, MEMORY)}
    all_kept = dataclasses.replace(manifest, policy=PrecisionPolicy("fp16", kept))
    check_network(parsed(all_kept), all_kept, all_kept.graphs[0], "the graph")


def test_a_plan_of_twice_the_precision_is_refused(manifest):
    half = parsed(manifest, weight_bytes=86_000_000, products={"fp16": 20})
    check_size(101_154_700, half, "the graph")  # enwik8-base, seen
    with pytest.raises(BuildError) as e:
        check_size(2 * 86_000_000, half, "the graph")
    assert "172,000,000 bytes" in one_line(e.value) and "fp16 allow" in str(e.value)
