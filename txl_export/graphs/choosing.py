"""Which products keep their weights in few bits: those whose rounding costs a text little of its perplexity."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from txl_export.bundle import GraphSpec, Manifest
from txl_export.config import ModelConfig
from txl_export.graphs.calibration import Progress, calibrate, first_states
from txl_export.graphs.model import SegmentGraph
from txl_export.number_types import PRECISIONS
from txl_export.precision import LAYER_PRODUCTS, WEIGHTED, Choice, PrecisionPolicy
from txl_export.reference import TransformerXL
from txl_export.segments import SegmentRange
from txl_export.tokens import Tokens

# The relative change of perplexity that all products together may cause: half of what `verify` allows, since another
# text may suffer more.
BUDGET = 2.5e-3


def choose_policy(
    model: TransformerXL, manifest: Manifest, tokens: Tokens, progress: Progress | None = None
) -> PrecisionPolicy:
    """Choose what may be in the manifest's precision, in the way that suits it.

    Args:
        model: the reference.
        manifest: of the bundle to be.
        tokens: what to run; beyond M tokens per stream the memory is full.
        progress: called with (steps done, steps known of).
    """
    by = choose_by_perplexity if PRECISIONS[manifest.precision].weights_only else calibrate
    return by(model, manifest, tokens, progress)


def choose_by_perplexity(
    model: TransformerXL, manifest: Manifest, tokens: Tokens, progress: Progress | None = None
) -> PrecisionPolicy:
    """Choose which products keep their weights in the manifest's format.

    Each kind of product ("W_1") is tried alone, in all layers, and may cost its share of `BUDGET`; one that costs more
    is tried layer by layer, and those that cost least stay within the share. At last all are tried together, and the
    costliest given up until they keep the budget.

    Returns:
        A policy with a choice for every product that has weights; its reasons are the changes measured.
    """
    trials = _Trials(model, manifest, tokens, progress)
    kinds = _kinds(manifest.config)
    share = BUDGET / len(kinds)
    groups = [group for names in kinds for group in _affordable(trials, names, share)]
    together = trials.change(groups)
    while groups and not together <= BUDGET:
        groups.remove(costliest := max(groups, key=lambda g: g.cost))
        trials.gave_up(costliest, together)
        together = trials.change(groups)
    B, n = tokens.ids.shape
    told = f"{tokens.source}, {B} streams of {n} tokens: with all of them perplexity changes by {_percent(together)}"
    return PrecisionPolicy(manifest.precision, trials.choices(groups), told)


@dataclass(frozen=True)
class _Group:
    """Products that are rounded together, and what that alone costs."""

    names: tuple[str, ...]
    cost: float


def _kinds(config: ModelConfig) -> list[tuple[str, ...]]:
    """Products with weights by kind, all layers together, in the order in which they run."""
    layers = range(config.n_layer)
    within = [tuple(f"layers.{n}.{kind}" for n in layers) for kind in LAYER_PRODUCTS if kind in WEIGHTED]
    return [*([("embedding",)] if config.has_projs else []), *within, ("logits",)]


def _affordable(trials: _Trials, names: tuple[str, ...], share: float) -> list[_Group]:
    """What of a kind costs at most its share: all of it, or layers, the cheapest first."""
    whole = trials.alone(names, share)
    if whole.cost <= share or len(names) == 1:
        return [whole] if whole.cost <= share else []
    kept, spent = list[_Group](), 0.0
    for group in sorted(trials.one_by_one(names, share), key=lambda g: g.cost):
        spent += group.cost
        if spent <= share:
            kept.append(group)
    return kept


class _Trials:
    """Runs of the same tokens with some weights rounded."""

    def __init__(self, model: TransformerXL, manifest: Manifest, tokens: Tokens, progress: Progress | None) -> None:
        # Numbers do not depend on the layout, and this one computes the least.
        graph = GraphSpec("", SegmentRange(1, manifest.segment_len), "target")
        self._manifest = dataclasses.replace(manifest, layout="kv", graphs=(graph,))
        self._model, self._ids = model, tokens.ids
        self._reasons: dict[str, str] = {}
        self._progress, self._done = progress or (lambda *_: None), 0
        self._known = len(_kinds(manifest.config)) + 2
        self._exact = self._nats(())

    def alone(self, names: tuple[str, ...], share: float) -> _Group:
        """Some products rounded, and nothing else."""
        group = _Group(names, self.change([_Group(names, 0.0)]))
        told = f"{self._manifest.precision} here alone changes perplexity by {_percent(group.cost)}"
        over = "" if group.cost <= share else f", its share is {_percent(share)}"
        self._reasons |= dict.fromkeys(names, told + over)
        return group

    def one_by_one(self, names: Sequence[str], share: float) -> list[_Group]:
        """Each of some products."""
        self._known += len(names)
        return [self.alone((name,), share) for name in names]

    def gave_up(self, group: _Group, together: float) -> None:
        """Say why a group that alone costs little is not rounded."""
        told = f"; with the others {_percent(together)}, more than {_percent(BUDGET)}"
        self._reasons |= {name: self._reasons[name] + told for name in group.names}
        self._known += 1

    def change(self, groups: Iterable[_Group]) -> float:
        """Relative change of perplexity, 0 or more, with some products rounded; NaN where numbers overflow."""
        rounded = self._nats([name for group in groups for name in group.names])
        return abs(math.expm1(min(rounded - self._exact, 700.0)))

    def choices(self, groups: Iterable[_Group]) -> dict[str, Choice]:
        """A choice for every product that was tried."""
        rounded = {name for group in groups for name in group.names}
        precision = {True: self._manifest.precision, False: "fp32"}
        return {name: Choice(precision[name in rounded], why=why) for name, why in self._reasons.items()}

    def _nats(self, names: Iterable[str]) -> float:
        """Nats per token with the weights of these products rounded."""
        wanted = set(names)
        every = (name for kind in _kinds(self._manifest.config) for name in kind)
        kept = {name: Choice("fp32") for name in every if name not in wanted}
        manifest = dataclasses.replace(self._manifest, policy=PrecisionPolicy(self._manifest.precision, kept))
        with torch.inference_mode():
            nats = _nats(SegmentGraph(self._model, manifest), self._model, manifest, self._ids)
        self._done += 1
        self._progress(self._done, self._known)
        return nats


def _nats(graph: SegmentGraph, model: TransformerXL, manifest: Manifest, ids: np.ndarray) -> float:
    """Mean negative log-probability of ids [B, n] but the first of each stream, read from an empty memory on."""
    tokens, total = torch.from_numpy(np.ascontiguousarray(ids)), 0.0
    states, positions = first_states(model, manifest, len(ids)), torch.full((len(ids),), manifest.start)
    for start in range(0, ids.shape[1] - 1, manifest.segment_len):
        targets = tokens[:, start + 1 : start + 1 + manifest.segment_len]
        x = tokens[:, start : start + targets.shape[1]]
        (found,), positions, states = graph("target", x, positions, states, targets)
        total -= float(found.double().sum())
    return total / (ids.shape[0] * (ids.shape[1] - 1))


def _percent(x: float) -> str:
    return f"{100 * x:.2g} %"
