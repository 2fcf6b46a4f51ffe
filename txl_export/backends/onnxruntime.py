"""Backend `onnxruntime`: graphs of a bundle on the CPU, the memory bound by address.

A call allocates nothing for the memory and copies nothing of it through Python. In layout `ring` each buffer is
input and output at once; in the others buffers take turns.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.backends.base import (
    RUNS_BUNDLES,
    Arrays,
    LoadedModel,
    Streams,
    bundle_info,
    check_request,
    reason,
)
from txl_export.backends.imports import imported
from txl_export.backends.ring import RingSizes, RingStreams, with_mem_len
from txl_export.backends.turns import POSITIONS, TurnStreams
from txl_export.bundle import Bundle, GraphSpec
from txl_export.calls import whole_calls
from txl_export.checkpoints.base import Checkpoint
from txl_export.errors import BundleError, InputError
from txl_export.number_types import PRECISIONS
from txl_export.room import require_room, the_memory

if TYPE_CHECKING:
    import onnxruntime as ort

MANY_ROWS = 64  # of a product, for which weights are packed whatever graph it is in
HALF_IN_FLOAT = (
    "ONNX Runtime's CPU provider computes half precision in fp32 inside: this proves types and wiring, "
    "--backend typed shows what rounding does"
)


def refuses(source: Bundle | Checkpoint) -> str | None:
    """Only bundles hold graphs, and the CPU provider multiplies no bfloat16."""
    return reason(_check, source)


def _check(source: Any) -> None:
    if not isinstance(source, Bundle):
        raise InputError("backend 'onnxruntime' runs bundles, this is a checkpoint: export it first", RUNS_BUNDLES)
    if source.manifest.precision == "bf16":
        raise InputError(
            "ONNX Runtime's CPU provider multiplies no bfloat16, which this bundle holds: "
            "use --backend typed (PyTorch), build TensorRT engines, or export with --precision fp16",
            "multiplies no bfloat16",
        )
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # a server sends nothing anywhere unless its owner says so
    imported("onnxruntime", "cpu", "backend 'onnxruntime'")


def load(
    source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
) -> LoadedModel:
    """Load a bundle; raises EnvironmentMismatch without onnxruntime, InputError for another M than the bundle's."""
    _check(source)
    cut = check_request(source.manifest, mem_len, segment_len)
    return OnnxRuntimeModel(source, cut, threads, mem_len)


class OnnxRuntimeModel(LoadedModel):
    """A bundle's graphs, each loaded when first used."""

    name = "onnxruntime"

    def __init__(self, bundle: Bundle, segment_len: int, threads: int | None, mem_len: int | None = None) -> None:
        """Read the manifest and first rows; no graph is loaded yet."""
        m = bundle.manifest
        self.bundle, self.states, self.threads = bundle, m.states, threads
        self.rows = bundle.initial_rows()
        self.sizes = RingSizes.of(bundle) if m.traits.in_place else None
        self._sessions: dict[tuple[object, ...], ort.InferenceSession] = {}
        self._lock = threading.Lock()
        self._graphs = {(g.head, g.segment): g for g in m.graphs}
        self.info = with_mem_len(bundle_info(bundle, segment_len), mem_len)
        self.notes = () if PRECISIONS[m.precision].dtype == "float32" else (HALF_IN_FLOAT,)

    def streams(self, batch_size: int, mem_len: int | None = None) -> Streams:
        """Memory for `batch_size` streams, at their start."""
        if self.sizes:
            return OnnxRuntimeRing(self, self.sizes, batch_size, mem_len)
        return OnnxRuntimeStreams(self, batch_size)

    def warm_up(self) -> None:
        """Load every graph and run the shortest call of each once."""
        for graph in self.bundle.manifest.graphs:
            streams, n = self.streams(1), graph.segment.lo
            ids = np.zeros((1, n), np.int64)
            head = self.info.head(graph.head)
            rows = 1 if head.last_only else n
            outputs = [np.empty((1, rows, *o.tail), o.dtype) for o in head.outputs]
            [call] = whole_calls(1, [n])
            streams.call(ids, graph.head, ids[:, :rows] if head.takes_targets else None, outputs, call)

    def prepare(self, head: str, length: int, batch_size: int = 1) -> None:
        """Load the graph that a call of `length` tokens of `batch_size` streams runs on."""
        m = dataclasses.replace(self.bundle.manifest, mem_len=self.info.mem_len)
        self.session(self.graph(head, length), batch_size, m.rows if self.sizes else 0)

    def graph(self, head: str, length: int) -> GraphSpec:
        """The graph for a call of `length` tokens: the one made for that length before a range."""
        return self._graphs[head, next(s for s in self.info.segments if length in s)]

    def session(self, graph: GraphSpec, batch_size: int, rows: int = 0) -> ort.InferenceSession:
        """The graph's ONNX Runtime session for so many streams, loaded at the first use.

        Args:
            graph: which.
            batch_size: streams.
            rows: of buffers that are written in place. A session is made for each number and batch size, in which
                they are constants: what follows from them is computed once, position tables are cut to them.
        """
        sizes = {"rows": rows, "batch": batch_size} if rows else {}
        packed = self._packed(graph, batch_size)
        key = (graph.file, packed, *sizes.values())
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._load(graph, packed, sizes)
            return self._sessions[key]

    def _packed(self, graph: GraphSpec, batch_size: int) -> bool:
        """Whether ONNX Runtime packs the graph's weights, which takes a copy of the model for each session.

        A product of one row reads every weight once, packed or not, and the file's pages are shared by all. For
        more rows packing pays: it is done for single tokens of several streams, for the longest calls and for all of
        MANY_ROWS. Weights of few bits it multiplies as they are only when packed, else it makes them fp32 at every
        call.
        """
        if self.bundle.manifest.policy.weights_only:
            return True
        if self.packed is not None:
            return self.packed
        rows = batch_size * graph.segment.hi
        usual = graph.segment.hi in (1, self.bundle.manifest.longest)
        return rows > 1 and (usual or rows >= MANY_ROWS)

    def _load(self, graph: GraphSpec, packed: bool, sizes: Mapping[str, int]) -> ort.InferenceSession:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        # The usual order cuts the new memory at the very end, until which all layers' keys and values are held; and a
        # pattern of allocations takes, from the second call on, as much again as the first call's allocations hold.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_pattern = False
        # Threads that wait for work after a call, for some 50 ms, take the cores from the next call on another graph.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if not packed:
            options.add_session_config_entry("session.disable_prepacking", "1")
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        if self.threads:
            options.intra_op_num_threads = self.threads
        path = self.bundle.path / graph.file
        try:
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as e:  # its errors have no public base class
            raise BundleError(f"{path} cannot be loaded ({str(e).splitlines()[0][:200]}): export again") from None
        self._check(graph, session, sizes)
        return session

    def _check(self, graph: GraphSpec, session: ort.InferenceSession, sizes: Mapping[str, int]) -> None:
        """The file's interface is the manifest's."""
        m = self.bundle.manifest
        for kind, found, expected in (
            ("input", session.get_inputs(), m.inputs(graph)),
            ("output", session.get_outputs(), m.outputs(graph)),
        ):
            names = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64"}
            there = [(v.name, names.get(v.type, v.type), tuple(v.shape)) for v in found]
            wanted = [(s.name, s.dtype, s.sized(sizes).shape) for s in expected]
            if there != wanted:
                odd = next(
                    (pair for pair in zip(there, wanted, strict=False) if pair[0] != pair[1]),
                    (len(there), len(wanted)),
                )
                raise BundleError(f"{graph.file}: {kind} {odd[0]} is not the manifest's {odd[1]}: export again")


class OnnxRuntimeRing(RingStreams):
    """Memory of B streams that graphs write in place."""

    def __init__(self, model: OnnxRuntimeModel, sizes: RingSizes, batch_size: int, mem_len: int | None = None) -> None:
        """Allocate the buffers and put all streams to their start."""
        super().__init__(with_mem_len(model.info, mem_len), sizes, batch_size)
        self.model = model
        self._visible_from, self._new_positions = np.zeros((2, batch_size), np.int64)
        self._bindings: dict[str, tuple[ort.InferenceSession, ort.IOBinding]] = {}
        # By graph: what is bound of tokens and answers.
        self._bound: dict[str, dict[str, Any]] = {}

    def run(
        self,
        ids: np.ndarray,
        head: str,
        targets: np.ndarray | None,
        outputs: Sequence[np.ndarray],
        visible_from: np.ndarray,
    ) -> None:
        """Run a graph on the buffers where they are."""
        graph = self.model.graph(head, ids.shape[1])
        first = graph.file not in self._bindings
        session, binding = self._bind(graph) if first else self._bindings[graph.file]
        self._visible_from[:] = visible_from
        bound = self._bound[graph.file]
        for name, array in (("input_ids", ids), ("targets", targets)):
            if array is not None:
                _stage(bound, binding, name, array)
        for spec, array in zip(self.info.head(head).outputs, outputs, strict=True):
            _bind_once(bound, binding, spec.name, array)
        if first:
            self.checked(graph.file, lambda: session.run_with_iobinding(binding))
            self._bindings[graph.file] = (session, binding)
        else:
            session.run_with_iobinding(binding)

    def _bind(self, graph: GraphSpec) -> tuple[ort.InferenceSession, ort.IOBinding]:
        """Bind everything that has the same place in every call of a graph."""
        session = self.model.session(graph, self.batch_size, self.store.shape[3])
        binding, self._bound[graph.file] = session.io_binding(), {}
        for name, array in (
            (POSITIONS, self.ring.positions),
            ("visible_from", self._visible_from),
            ("window", self.window),
        ):
            _bind_input(binding, name, array)
        _bind_output(binding, "new_positions", self._new_positions)
        for array, spec in zip(self.buffer, self.sizes.states, strict=True):
            _bind_input(binding, spec.input, array)
            _bind_output(binding, spec.output, array)
        return session, binding


class OnnxRuntimeStreams(TurnStreams[Arrays]):
    """Memory of B streams in buffers that take turns as input and output."""

    def __init__(self, model: OnnxRuntimeModel, batch_size: int) -> None:
        """Allocate the first buffers and put all streams to their start."""
        self.model = model
        nbytes = 2 * batch_size * sum(s.nbytes for s in model.states)
        require_room(nbytes, *the_memory(model.info.mem_len, batch_size))
        self._bindings: dict[tuple[str, int, int], ort.IOBinding] = {}
        super().__init__(model.info, model.states, model.rows, batch_size)

    def _allocate(self) -> Arrays:
        slot = {s.input: np.zeros((self.batch_size, *s.shape), s.dtype) for s in self.states}
        return slot | {POSITIONS: np.zeros(self.batch_size, np.int64)}

    def _read(self, slot: Arrays) -> Arrays:
        return {name: array.copy() for name, array in slot.items()}

    def _write(self, slot: Arrays, state: Mapping[str, np.ndarray], streams: np.ndarray) -> None:
        for name, array in slot.items():
            array[streams] = state[name]

    def _gather(self, slot: Arrays, other: Arrays, index: np.ndarray) -> None:
        for name, array in slot.items():
            array[...] = other[name][index]

    def _positions(self, slot: Arrays) -> np.ndarray:
        return slot[POSITIONS]

    def run(
        self,
        ids: np.ndarray,
        head: str,
        targets: np.ndarray | None,
        outputs: Sequence[np.ndarray],
        now: int,
        free: int,
    ) -> None:
        """Run a graph from one buffer into another."""
        graph = self.model.graph(head, ids.shape[1])
        session = self.model.session(graph, self.batch_size)
        binding = self._binding(graph, session, now, free)
        _bind_input(binding, "input_ids", ids)
        if targets is not None:
            _bind_input(binding, "targets", targets)
        for spec, array in zip(self.info.head(head).outputs, outputs, strict=True):
            _bind_output(binding, spec.name, array)
        session.run_with_iobinding(binding)

    def _binding(self, graph: GraphSpec, session: ort.InferenceSession, now: int, free: int) -> ort.IOBinding:
        """Bindings of the memory, made once per graph and direction."""
        key = (graph.file, now, free)
        if key not in self._bindings:
            binding = session.io_binding()
            for name, array in self._slots[now].items():
                _bind_input(binding, name, array)
            for name, array in self._slots[free].items():
                _bind_output(binding, f"new_{name}", array)
            self._bindings[key] = binding  # kept only when whole
        return self._bindings[key]


def _stage(bound: dict[str, Any], binding: ort.IOBinding, name: str, array: np.ndarray) -> None:
    """Copy tokens to an array that stays bound: binding costs more than copying a few."""
    if name not in bound:
        bound[name] = np.empty_like(array)
        _bind_input(binding, name, bound[name])
    np.copyto(bound[name], array)


def _bind_once(bound: dict[str, Any], binding: ort.IOBinding, name: str, array: np.ndarray) -> None:
    """Bind an answer unless its very place is bound, as where a caller gives one buffer for all."""
    place = (array.__array_interface__["data"][0], array.shape)
    if bound.get(name) != place:
        _bind_output(binding, name, array)
        bound[name] = place


def _bind_input(binding: ort.IOBinding, name: str, array: np.ndarray) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: ort.IOBinding, name: str, array: np.ndarray) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
