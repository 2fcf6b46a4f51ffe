"""What is compared, in which order, and what is left out."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import matrix
from benchmarks.matrix import Point, candidates_first, choose, full_matrix, quick_matrix
from benchmarks.peers import PEERS
from benchmarks.shapes import SHAPES, open_shape


def test_the_full_matrix_is_the_whole_product_one_stream_first():
    points = full_matrix(SHAPES)
    every = itertools.product(SHAPES, (1, 16, 64, 128), (128, 640, 1600, 3800), (1, 8, 32))
    assert set(points) == {Point(*p) for p in every}
    assert len(points) == len(set(points)) == 144
    assert [p.batch_size for p in points] == [1] * 48 + [8] * 48 + [32] * 48
    assert points[0][1:] == (1, 1600, 1)
    assert {p.segment_len for p in points[:24]} == {1, 128}


def test_the_quick_matrix_has_every_memory_length_and_a_longer_segment():
    points = quick_matrix()
    expected = {"enwik8-base": {128, 640, 1600, 3800}, "stdlib-bytes": {128, 640, 1600}, "wt103-base": {640}}
    for shape, lengths in expected.items():
        assert {p.mem_len for p in points if (p.shape, p.segment_len) == (shape, 1)} == lengths
    assert {p.segment_len for p in points} == {1, 64, 128} and {p.batch_size for p in points} == {1, 32}
    assert len(points) == len(set(points))


def test_what_memory_cannot_hold_is_left_out_compile_first():
    shape, point = open_shape("enwik8-base"), Point("enwik8-base", 1, 1600, 8)
    sizes = {peer: matrix.peak_bytes(peer, shape.config, point) for peer in PEERS}
    everybody = choose(tuple(PEERS), shape, point, sum(sizes.values()))
    assert (everybody.peers, everybody.left_out, everybody.reason) == (tuple(PEERS), (), "")
    fewer = choose(tuple(PEERS), shape, point, sum(sizes.values()) - 1)
    assert fewer.left_out == ("compile",) and "compile" not in fewer.peers and "GB" in fewer.reason
    nobody = choose(tuple(PEERS), shape, point, sum(sizes.values()) - sizes["compile"] - 1)
    assert (nobody.peers, nobody.left_out) == ((), tuple(PEERS))


@pytest.mark.parametrize("peer", PEERS)
def test_estimates_grow_with_every_dimension(peer):
    config, small = open_shape("wt103-base").config, Point("wt103-base", 1, 640, 1)
    for bigger in (small._replace(segment_len=128), small._replace(mem_len=3800), small._replace(batch_size=32)):
        assert matrix.peak_bytes(peer, config, bigger) > matrix.peak_bytes(peer, config, small)
        assert matrix.seconds([peer], config, bigger, 3) > matrix.seconds([peer], config, small, 3)


def test_the_judge_is_asked_first():
    assert candidates_first(list(PEERS))[0] == "eager"
    assert sorted(candidates_first(list(PEERS))) == sorted(PEERS)
