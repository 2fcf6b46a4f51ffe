"""Calibration: what a half precision can hold, seen by running the model in float32 on text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from txl_export.bundle import GraphSpec, Manifest
from txl_export.checkpoints import Checkpoint
from txl_export.errors import InputError
from txl_export.graphs.layouts import TRACED
from txl_export.graphs.model import SegmentGraph
from txl_export.graphs.typed import Product
from txl_export.precision import MEMORY, Choice, PrecisionPolicy, choose
from txl_export.reference import TransformerXL
from txl_export.segments import SegmentRange
from txl_export.tokens import Tokens
from txl_export.tokens import choose as choose_tokens

Progress = Callable[[int, int], None]

# A run: streams, and segments beyond those that fill the memory.
STREAMS, SEGMENTS = 4, 8


def calibrate(
    model: TransformerXL,
    manifest: Manifest,
    tokens: Tokens,
    progress: Progress | None = None,
) -> PrecisionPolicy:
    """Choose which products and whether the memory may be in a half precision.

    Args:
        model: the reference.
        manifest: of the bundle to be; layout, M and segment length are what is run, its precision is what the
            numbers must fit in.
        tokens: what to run; beyond M tokens per stream the memory is full.
        progress: called with (segments done, segments in all).

    Returns:
        A policy with a choice, its largest values and its reason for every product and for the memory.
    """
    # The same products of the same numbers, whatever order rows stand in.
    manifest = dataclasses.replace(manifest, layout=manifest.traits.ordered or manifest.layout)
    largest = _Largest()
    graph = _float32_graph(model, manifest)
    with torch.inference_mode(), largest.watching(graph):
        for states in _run(graph, model, manifest, tokens.ids, progress):
            largest.see(MEMORY, [t for layer in states for t in layer], [])
    B, n = tokens.ids.shape
    choices = largest.choices(manifest.precision)
    return PrecisionPolicy(manifest.precision, choices, f"{tokens.source}, {B} streams of {n} tokens")


def calibration_tokens(
    checkpoint: Checkpoint, manifest: Manifest, given: bytes | np.ndarray | PrecisionPolicy | None
) -> Tokens | None:
    """What to calibrate on: enough to fill the memory and go on; None where nothing is left to choose.

    Raises:
        InputError: something given for fp32, a text without a vocabulary, or too few tokens.
    """
    if isinstance(given, PrecisionPolicy):
        return None
    if manifest.precision == "fp32":
        if given is not None:
            raise InputError("precision fp32 needs no calibration: leave it out, or ask for another precision")
        return None
    length = manifest.mem_len + SEGMENTS * manifest.segment_len
    text, ids = (given, None) if isinstance(given, bytes) else (None, given)
    streams = STREAMS if ids is None or np.ndim(ids) != 2 else len(ids)
    return choose_tokens(text, ids, None, checkpoint.vocab, checkpoint.config.vocab_size, streams, length)


def _float32_graph(model: TransformerXL, manifest: Manifest) -> SegmentGraph:
    """The graph that is watched: in float32, with the logits of every token."""
    segment = SegmentRange(1, manifest.longest)
    asked = dataclasses.replace(
        manifest, policy=PrecisionPolicy.uniform("fp32"), graphs=(GraphSpec("", segment, "logits"),)
    )
    return SegmentGraph(model, asked)


def _run(
    graph: SegmentGraph, model: TransformerXL, manifest: Manifest, ids: np.ndarray, progress: Progress | None
) -> Iterator[list[list[Tensor]]]:
    """Run all tokens segment by segment; the memory after each."""
    batch_size, n = ids.shape
    states = first_states(model, manifest, batch_size)
    positions = torch.full((batch_size,), manifest.start)
    starts = range(0, n, manifest.segment_len)
    for i, start in enumerate(starts):
        part = torch.from_numpy(np.ascontiguousarray(ids[:, start : start + manifest.segment_len]))
        _, positions, states = graph("logits", part, positions, states)
        yield states
        if progress:
            progress(i + 1, len(starts))


def first_states(model: TransformerXL, manifest: Manifest, batch_size: int) -> list[list[Tensor]]:
    """Memory tensors of streams that have read nothing, by layer: the rows that a zero memory gives, in their types."""
    if not manifest.mem_len:
        return [[] for _ in model.stack]
    types = [getattr(torch, s.dtype) for s in manifest.states if s.layer == 0]
    zero = torch.zeros(batch_size, manifest.mem_len, manifest.config.d_model)
    kept = (TRACED[manifest.layout].project(layer.attention, zero) for layer in model.stack)
    return [[t.to(dtype) for t, dtype in zip(rows, types, strict=True)] for rows in kept]


class _Largest:
    """The largest magnitudes of operands and results, by name."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def see(self, name: str, operands: list[Tensor], results: list[Tensor]) -> None:
        """Take note of tensors."""
        old = self._seen.get(name, (0.0, 0.0))
        self._seen[name] = (max(old[0], _magnitude(operands)), max(old[1], _magnitude(results)))

    @contextmanager
    def watching(self, graph: SegmentGraph) -> Iterator[None]:
        """See every product of a graph while the block runs."""
        products = [m for m in graph.modules() if isinstance(m, Product)]
        for product in products:
            self.see(product.name, [*product.parameters(), *product.buffers()], [])
        hooks = [p.register_forward_hook(self._hook) for p in products]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, module: nn.Module, given: tuple[object, ...], result: Tensor) -> None:
        assert isinstance(module, Product)
        operands = [t for t in given if isinstance(t, Tensor) and t.is_floating_point()]
        self.see(module.name, operands, [result])

    def choices(self, precision: str) -> dict[str, Choice]:
        """What follows for each name."""
        return {name: choose(name, precision, *seen) for name, seen in self._seen.items()}


def _magnitude(tensors: list[Tensor]) -> float:
    """The largest magnitude; infinite where anything is not a number."""
    sizes = [float(t.abs().max()) for t in tensors if t.numel()]
    return math.inf if any(map(math.isnan, sizes)) else max(sizes, default=0.0)
