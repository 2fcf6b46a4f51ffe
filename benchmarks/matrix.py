"""Which points are compared, the most telling first, and what each is expected to take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.lengths import MEM_LENS, SEGMENT_LENS
from benchmarks.peers import JUDGE, PEERS
from benchmarks.shapes import Shape
from txl_export.config import ModelConfig
from txl_export.layouts import layout_of, memory_bytes
from txl_export.weights import count_parameters

_FLOAT = 4


class Point(NamedTuple):
    """Cells that differ in the peer only."""

    shape: str
    segment_len: int
    mem_len: int
    batch_size: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.shape}, L = {self.segment_len}, M = {self.mem_len}, B = {self.batch_size}"


def full_matrix(shapes: Sequence[str]) -> list[Point]:
    """`SEGMENT_LENS` by `MEM_LENS` by B = 1, 8, 32 of every shape."""
    return [
        Point(shape, L, M, B)
        for B in (1, 8, 32)
        for L in sorted(SEGMENT_LENS, key=(1, 128, 64, 16).index)
        for M in sorted(MEM_LENS, key=(1600, 3800, 640, 128).index)
        for shape in shapes
    ]


QUICK_SHAPES = ("enwik8-base", "stdlib-bytes")  # over all M
QUICK_PEERS = tuple(name for name in PEERS if name != "compile")  # whose compilations take most of five minutes


def quick_matrix() -> list[Point]:
    """One token over the M of two shapes, longer segments, a large vocabulary, and streams in a batch."""
    places = [(1, 1600), (64, 1600), (1, 640), (1, 128), (1, 3800)]
    points = [Point(shape, L, M, 1) for L, M in places for shape in QUICK_SHAPES]
    more = [Point("enwik8-base", 128, 1600, 1), Point("wt103-base", 1, 640, 1), Point("enwik8-base", 1, 128, 32)]
    return points[:-1] + more  # the longest memory of the smaller shape does not fit


def call_flops(layout: str, config: ModelConfig, point: Point) -> float:
    """FLOPs of the matrix products of a call, as a peer of that layout computes them."""
    c, (_, L, M, B), traits = config, point, layout_of(layout)
    heads, K = c.n_head * c.d_head, _keys(layout, point)
    again = M * traits.projects_again  # remembered rows that are projected once more
    positions = K * c.d_model * traits.projects_again
    per_layer = B * (heads * c.d_model * (4 * L + 2 * again) + 3 * L * K * heads + 2 * L * c.d_model * c.d_inner)
    return 2.0 * (c.n_layer * (per_layer + heads * positions) + B * L * c.vocab_size * c.d_embed)


def call_seconds(peer: str, config: ModelConfig, point: Point, streams: float = 2.5e10) -> float:
    """About how long a call takes: its arithmetic, or its memory read, written and moved once.

    Args:
        peer: a name of `PEERS`.
        config: the architecture.
        point: where.
        streams: bytes per second.
    """
    about = PEERS[peer]
    memory = about.memories * point.batch_size * memory_bytes(about.layout, config, _rows(about.layout, point))
    scores = about.scores * config.n_layer * _scores(about.layout, config, point)
    moved = memory + scores + _FLOAT * count_parameters(config) + about.outputs * _outputs(config, point)
    return 5e-4 + call_flops(about.layout, config, point) / about.flop_rate + moved / streams


def seconds(peers: Sequence[str], config: ModelConfig, point: Point, rounds: int) -> float:
    """About how long a comparison takes, without what is built for it.

    Args:
        peers: its candidates.
        config: the architecture.
        point: where.
        rounds: turns of each.
    """
    total = 0.0
    for peer in peers:
        call = call_seconds(peer, config, point)
        # The first call, two of the check, three to warm up; in a round two untimed ones, then three or more.
        total += PEERS[peer].load_seconds + 6 * call + rounds * (2 * call + max(0.4, 3 * call))
    return total


def peak_bytes(peer: str, config: ModelConfig, point: Point) -> float:
    """About the most memory that a peer's process holds."""
    about = PEERS[peer]
    B, K = point.batch_size, _keys(about.layout, point)
    memory = about.memories * B * memory_bytes(about.layout, config, _rows(about.layout, point))
    projected = _FLOAT * B * K * (config.d_model + 4 * config.n_head * config.d_head)  # of one layer
    weights = 2.0 * _FLOAT * count_parameters(config)  # rearranged copies beside them
    arrays = about.scores * _scores(about.layout, config, point) + about.outputs * _outputs(config, point)
    return about.base_bytes + weights + memory + projected + arrays


def _rows(layout: str, point: Point) -> int:
    """Rows of the memory tensors."""
    return layout_of(layout).rows(point.mem_len, max(SEGMENT_LENS), max(SEGMENT_LENS))


def _keys(layout: str, point: Point) -> int:
    """Keys that scores are computed for."""
    in_place = layout_of(layout).in_place  # the segment's own are among the rows then
    return _rows(layout, point) if in_place else point.mem_len + point.segment_len


def _scores(layout: str, config: ModelConfig, point: Point) -> float:
    """Bytes of one layer's attention scores."""
    return _FLOAT * point.batch_size * config.n_head * point.segment_len * _keys(layout, point)


def _outputs(config: ModelConfig, point: Point) -> float:
    """Bytes of the log-probabilities."""
    return _FLOAT * point.batch_size * point.segment_len * config.vocab_size


class Choice(NamedTuple):
    """Who takes part in a comparison, and who does not and why.

    Attributes:
        peers: candidates, or none where the comparison makes no sense without those that are left out.
        left_out: names that do not take part.
        reason: why; empty where all do.
    """

    peers: tuple[str, ...]
    left_out: tuple[str, ...]
    reason: str


def choose(peers: Sequence[str], shape: Shape, point: Point, limit: float) -> Choice:
    """Leave out `compile`, then the whole comparison, where processes would need more memory than there is.

    Args:
        peers: wanted.
        shape: the model.
        point: where.
        limit: bytes that all processes together may hold.
    """
    sizes = {peer: peak_bytes(peer, shape.config, point) for peer in peers}
    total = sum(sizes.values())
    if total <= limit:
        return Choice(tuple(peers), (), "")
    reason = f"the processes would hold about {total / 1e9:.0f} GB, more than {limit / 1e9:.0f} GB"
    fewer = tuple(peer for peer in peers if peer != "compile")
    if fewer != tuple(peers) and sum(sizes[peer] for peer in fewer) <= limit:
        return Choice(fewer, ("compile",), reason)
    return Choice((), tuple(peers), reason)


def candidates_first(peers: Sequence[str]) -> list[str]:
    """The order in which processes load: the judge, whose numbers the others are compared with, before them."""
    return sorted(peers, key=lambda peer: peer != JUDGE)
