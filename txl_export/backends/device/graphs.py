"""The graphs of one session on a GPU: where tokens go in, where answers come out, and what is bound in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.backends.device.arrays import DeviceArray
from txl_export.backends.device.calls import ALIGNMENT, Cuda, Owned
from txl_export.backends.device.launch import Launcher
from txl_export.backends.device.memory import Staging
from txl_export.bundle import GraphSpec
from txl_export.heads import HeadSpec

if TYPE_CHECKING:
    from txl_export.backends.device.model import DeviceModel

NEW_POSITIONS = "new_positions"  # sessions count for themselves: what graphs say goes nowhere


class SessionGraphs:
    """The graphs that a session has called, each with its staging; all share the session's stream."""

    def __init__(self, model: DeviceModel, batch_size: int) -> None:
        """Nothing is bound yet."""
        self.model, self.batch_size = model, batch_size
        self.stream = model.stream()
        self._graphs: dict[str, BoundGraph] = {}
        self._scratch: Any = None

    def bound(self, head: str, length: int, rows: int) -> BoundGraph:
        """The graph for a call of `length` tokens, bound when it is first asked for.

        Args:
            head: that is asked.
            length: tokens of the call.
            rows: of memory tensors that are written in place; 0 in other layouts.

        Raises:
            DeviceError: there is no room for it, or what runs it refuses it.
        """
        graph = self.model.graph(head, length)
        if graph.file not in self._graphs:
            self._graphs[graph.file] = self._bind(graph, rows)
        return self._graphs[graph.file]

    def _bind(self, graph: GraphSpec, rows: int) -> BoundGraph:
        if self._scratch is None:
            self._scratch = self.model.scratch()
        executor = self.model.executor(graph, self.batch_size, rows, self.stream, self._scratch)
        launcher = Launcher(self.model.cuda, self.stream, executor, self.model.capture and self.model.launches)
        inputs = [t.name for t in self.model.bundle.manifest.inputs(graph)]
        places = [n for n in ("positions", *self.model.bundle.manifest.traits.inputs) if n in inputs]
        head = self.model.info.head(graph.head)
        return BoundGraph(self.model.cuda, self.stream, launcher, graph, head, places, self.batch_size)


class BoundGraph:
    """One graph in a session."""

    def __init__(
        self,
        cuda: Cuda,
        stream: Owned,
        launcher: Launcher,
        graph: GraphSpec,
        head: HeadSpec,
        places: Sequence[str],
        batch_size: int,
    ) -> None:
        """Allocate what tokens and answers pass through.

        Args:
            cuda: the GPU.
            stream: the session's.
            launcher: runs the graph.
            graph: which.
            head: what it answers.
            places: int64 [B] inputs that say which rows count.
            batch_size: streams.
        """
        self.cuda, self.stream, self.launcher, self.graph, self.head = cuda, stream, launcher, graph, head
        self._batch, longest = batch_size, graph.segment.hi
        tokens = {"input_ids": ((batch_size * longest,), "int64")}
        if head.takes_targets:
            tokens["targets"] = ((batch_size * (1 if head.last_only else longest),), "int64")
        rows = dict.fromkeys((*places, NEW_POSITIONS), ((batch_size,), "int64"))
        self._places, self._in = places, Staging(cuda, stream, {**tokens, **rows})
        self._out: Staging | None = None  # only when an answer is wanted on the host

    def run(
        self,
        ids: np.ndarray | DeviceArray,
        targets: np.ndarray | DeviceArray | None,
        outputs: Sequence[np.ndarray | DeviceArray],
        places: Mapping[str, np.ndarray],
        memory: Mapping[str, int],
    ) -> None:
        """Run one call; waits for it where an answer is wanted on the host.

        Args:
            ids: int64 [B, L].
            targets: int64 [B, L or 1], for heads that take them.
            outputs: arrays for the answers.
            places: by name the int64 [B] that say which rows count.
            memory: addresses of memory tensors, inputs and outputs.
        """
        self._in.settle()
        for name in self._places:
            self._in.host[name][:] = places[name]
        given = {"input_ids": ids} if targets is None else {"input_ids": ids, "targets": targets}
        for name, array in given.items():
            if isinstance(array, np.ndarray):
                self._in.host[name][: array.size] = array.reshape(-1)
        self._in.send()
        addresses = {name: self._token_address(name, array) for name, array in given.items()}
        addresses |= {name: self._in.address[name] for name in (*self._places, NEW_POSITIONS)}
        targets_of = {o.name: a for o, a in zip(self.head.outputs, outputs, strict=True)}
        addresses |= {name: self._answer_address(name, array) for name, array in targets_of.items()}
        self.launcher(ids.shape[1], addresses | dict(memory))
        self._deliver(targets_of, addresses)

    def _token_address(self, name: str, array: np.ndarray | DeviceArray) -> int:
        """Where the graph reads tokens: a caller's own array as it is, unless no engine takes its address."""
        staged = self._in.address[name]
        if isinstance(array, np.ndarray):
            return staged
        if array.address % ALIGNMENT == 0:
            return array.address
        self.cuda.copy(staged, array.address, array.nbytes, self.stream)
        return staged

    def _answer_address(self, name: str, array: np.ndarray | DeviceArray) -> int:
        if isinstance(array, DeviceArray) and array.address % ALIGNMENT == 0:
            return array.address
        if self._out is None:
            rows = 1 if self.head.last_only else self.graph.segment.hi
            sizes = {o.name: (self._batch * rows * int(np.prod(o.tail)), o.dtype) for o in self.head.outputs}
            self._out = Staging(self.cuda, self.stream, {n: ((size,), t) for n, (size, t) in sizes.items()})
        return self._out.address[name]

    def _deliver(self, answers: Mapping[str, np.ndarray | DeviceArray], addresses: Mapping[str, int]) -> None:
        """Bring answers to where they are wanted."""
        on_host = {n: a for n, a in answers.items() if isinstance(a, np.ndarray)}
        for name, array in answers.items():
            if name in on_host:
                assert self._out is not None
                self._out.fetch(name, array.nbytes)
            elif addresses[name] != array.address:  # type: ignore[union-attr]
                self.cuda.copy(array.address, addresses[name], array.nbytes, self.stream)  # type: ignore[union-attr]
        if on_host:
            assert self._out is not None
            self.cuda.wait(self.stream)
            for name, array in on_host.items():
                array[...] = self._out.host[name][: array.size].reshape(array.shape)
