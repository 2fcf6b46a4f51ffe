"""The judge in both of its forms: the reference with its values at every layer, and its own graph, traced anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from txl_export.backends.eager import HEADS, EagerModel, _grown
from txl_export.bundle import GraphSpec, Manifest
from txl_export.checkpoints import Checkpoint
from txl_export.graphs.assembly import Assembler
from txl_export.graphs.layouts import TRACED
from txl_export.graphs.model import SegmentGraph
from txl_export.reference import Memory
from txl_export.verification.bisection.calls import Call
from txl_export.verification.bisection.graph_view import GraphView, from_trace
from txl_export.verification.bisection.parts import parts_of
from txl_export.verification.bisection.rows import Rows, rows_for

if TYPE_CHECKING:
    from torch import Tensor, nn

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Values:
    """What the reference computes in one call.

    Attributes:
        hidden: after the embedding and after each layer, [B, L, d_model].
        answers: the head's outputs by name.
        states: the memory after the call, by the graph's output names; rows that do not count are included.
    """

    hidden: list[np.ndarray]
    answers: Arrays
    states: Arrays


class Judge:
    """The trained model that a bundle is compared with."""

    def __init__(self, checkpoint: Checkpoint, manifest: Manifest) -> None:
        """Take the checkpoint and the manifest of the bundle that is judged."""
        self.checkpoint, self.manifest = checkpoint, manifest
        self.single = self._model()

    def _model(self) -> EagerModel:
        m = self.manifest
        return EagerModel(self.checkpoint, m.mem_len, m.segment_len, m.top_k)

    @cached_property
    def double(self) -> EagerModel:
        """The same in float64."""
        return self._model().double()

    @cached_property
    def rows(self) -> Rows:
        """How the bundle's graphs keep memory rows."""
        return rows_for(self.manifest)

    def start(self, batch_size: int) -> Memory:
        """The memory of streams that have read nothing."""
        return self.single.model.initial_memory(batch_size)

    def before(self, memory: Memory, call: Call) -> Memory:
        """What a call may see of a memory: M rows, and those of its own segment."""
        return _newest(memory, self.manifest.mem_len + call.offset)

    def advance(self, memory: Memory, call: Call) -> Memory:
        """The memory after a call, with all that a further call of its segment may see."""
        with torch.inference_mode():
            return self.single.model.features(torch.from_numpy(call.ids), memory, self._remembered(call))[1]

    def _remembered(self, call: Call) -> int:
        """Rows to keep after a call; a window goes with M itself, and needs no more."""
        m = self.manifest
        return m.mem_len if m.config.same_length else m.mem_len + call.offset + call.valid

    def states(self, memory: Memory, name: Callable[[str], str] = str, double: bool = False) -> Arrays:
        """A memory as the graph has it, with all M rows by age: [B, ...] by input name, or what `name` makes of it."""
        m = self.manifest
        model = (self.double if double else self.single).model
        found: Arrays = {}
        with torch.inference_mode():
            for n, (layer, hidden) in enumerate(zip(model.stack, memory.hidden, strict=True)):
                specs = [s for s in m.states if s.layer == n]
                kept = TRACED[m.layout].project(layer.attention, _grown(hidden, m.mem_len))
                found |= {name(s.input): t.numpy() for s, t in zip(specs, kept, strict=False)}
        return found

    def feeds(self, memory: Memory, call: Call) -> Arrays:
        """The inputs of the graph for a call that starts from a memory of the reference."""
        positions = np.full(call.batch_size, call.start + self.manifest.start, np.int64)
        types = {s.input: s.dtype for s in self.manifest.states}
        states = {name: a.astype(types[name], copy=False) for name, a in self.states(memory).items()}
        return {**call.tokens, "positions": positions, **self.rows.inputs(states, call)}

    def counted(self, observed: Mapping[str, np.ndarray], call: Call) -> Arrays:
        """A graph's values without what padding gave, its memory by age."""
        states = self.rows.by_age(observed, call)
        rest = {n: a for n, a in observed.items() if n not in states and a.ndim > 1}
        if call.padded and call.last_only:  # the answer is padding's
            rest = {n: a for n, a in rest.items() if a.shape[1] == call.step.length}
        return states | {n: a[:, : call.valid] for n, a in rest.items()}

    def rounded(self, memory: Memory, call: Call, head: str) -> Values:
        """Everything that a call can be compared by, as the bundle's precision leaves it: see `SegmentGraph`."""
        made = values_of(self.module, self.manifest, head, self.feeds(memory, call))
        hidden = [h[:, : call.valid] for h in made.hidden]
        return Values(hidden, self.counted(made.answers, call), self.counted(made.states, call))

    def values(self, memory: Memory, call: Call, head: str, double: bool = False) -> Values:
        """Everything that a call can be compared by, in float32 or float64."""
        owner = self.double if double else self.single
        model, hidden = owner.model, list[np.ndarray]()
        ids = torch.from_numpy(call.ids)
        if double:
            memory = Memory(tuple(h.double() for h in memory.hidden), memory.filled)
        with torch.inference_mode(), _kept([model.embedding, *model.stack], hidden):
            h, after = model.features(ids, memory, self._remembered(call))
            kind, _, last = head.partition("@")
            asked = None if call.targets is None else torch.from_numpy(call.targets)
            answers = HEADS[kind](model, h[:, -1:] if last else h, asked, owner.info.top_k)
        names = [o.name for o in self.manifest.head(head).outputs]
        return Values(
            hidden,
            {name: t.numpy() for name, t in zip(names, answers, strict=True)},
            self.states(_newest(after, self.manifest.mem_len), lambda name: f"new_{name}", double),
        )

    @cached_property
    def module(self) -> SegmentGraph:
        """The traceable module with the judge's weights rearranged as graphs have them."""
        return SegmentGraph(self.single.model, self.manifest)

    def graph(self, spec: GraphSpec) -> GraphView:
        """The graph that an export of the judge gives now."""
        model = Assembler(self.module, self.manifest, notes=True).build(spec)
        return from_trace(model, parts_of(self.manifest, spec))


def values_of(module: SegmentGraph, manifest: Manifest, head: str, feeds: Mapping[str, np.ndarray]) -> Values:
    """What a module computes from the inputs of a graph of the same manifest."""
    hidden: list[np.ndarray] = []
    given = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in feeds.items()}
    layers = [[given[s.input] for s in manifest.states if s.layer == n] for n in range(manifest.config.n_layer)]
    places = [given[name] for name in manifest.traits.inputs]
    with torch.inference_mode(), _kept([module.opening, *module.layers], hidden):
        answers, _, states = module(head, given["input_ids"], given["positions"], layers, given.get("targets"), places)
    names, flat = (o.name for o in manifest.head(head).outputs), (t for layer in states for t in layer)
    return Values(
        hidden,
        {name: t.numpy() for name, t in zip(names, answers, strict=True)},
        {s.output: t.numpy() for s, t in zip(manifest.states, flat, strict=True)},
    )


def _newest(memory: Memory, n: int) -> Memory:
    """The newest n rows of a memory, or all where there are fewer."""
    hidden = tuple(h[:, max(0, h.shape[1] - n) :] for h in memory.hidden)
    return Memory(hidden, memory.filled.clamp(max=n))


class _kept:  # noqa: N801 - reads as a verb: `with _kept(modules, hidden)`
    """Appends what modules give, or the first of several things, to a list: the hidden states after each."""

    def __init__(self, modules: Iterable[nn.Module], hidden: list[np.ndarray]) -> None:
        def keep(module: nn.Module, given: object, out: Tensor | tuple[Tensor, ...]) -> None:
            del module, given
            hidden.append((out[0] if isinstance(out, tuple) else out).numpy())

        self._hooks = [m.register_forward_hook(keep) for m in modules]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        for hook in self._hooks:
            hook.remove()
