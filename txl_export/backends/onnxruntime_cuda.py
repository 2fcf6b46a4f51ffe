"""Backend `onnxruntime-cuda`: graphs of a bundle in ONNX Runtime's CUDA provider, the memory bound on the device.

Source: ONNX Runtime's documentation of the CUDA execution provider, its options and its CUDA graphs.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.backends import cuda
from txl_export.backends.base import RUNS_BUNDLES, LoadedModel, check_request, reason
from txl_export.backends.device.calls import Cuda, Owned
from txl_export.backends.device.launch import MOST_CAPTURED, Addresses, Executor
from txl_export.backends.device.model import DeviceModel
from txl_export.backends.imports import imported
from txl_export.bundle import Bundle, GraphSpec, TensorSpec
from txl_export.checkpoints.base import Checkpoint
from txl_export.errors import DeviceError, EnvironmentMismatch, InputError
from txl_export.files import first_line

if TYPE_CHECKING:
    import onnxruntime as ort

NAME, PROVIDER = "onnxruntime-cuda", "CUDAExecutionProvider"
# ONNX's number of a type that numpy has not.
_BFLOAT16 = 16
_NOT_CAPTURED, MOST_NUMBERED = -1, 256
fixed = False


def refuses(source: Bundle | Checkpoint) -> str | None:
    """Bundles are run where there is a GPU and ONNX Runtime has the provider for it."""
    return reason(check, source)


def check(source: Any, batch_sizes: Sequence[int] = ()) -> None:
    """See `GpuBackend.check`; raises InputError or EnvironmentMismatch."""
    del batch_sizes  # a bundle's graphs take any
    if not isinstance(source, Bundle):
        raise InputError("backend 'onnxruntime-cuda' runs bundles, this is a checkpoint: export it first", RUNS_BUNDLES)
    cuda.required(NAME)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # a server sends nothing anywhere unless its owner says so
    onnxruntime = imported("onnxruntime", "gpu", f"backend {NAME!r}", "check the NVIDIA driver")
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries may have come as packages of their own
    if PROVIDER not in onnxruntime.get_available_providers():
        remedy = "pip uninstall -y onnxruntime && pip install 'txl-export[gpu]'"
        raise EnvironmentMismatch(
            f"the installed onnxruntime {onnxruntime.__version__} has no CUDA provider: {remedy}",
            f"onnxruntime without CUDA: {remedy}",
        )


def load(
    source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
) -> LoadedModel:
    """Load a bundle on the GPU.

    Raises:
        InputError: a checkpoint, or lengths that the bundle has not.
        EnvironmentMismatch: no GPU, no package, a package without the provider, or a provider that cannot be loaded.
    """
    del threads
    check(source)
    return OnnxRuntimeCuda(source, Cuda(), check_request(source.manifest, mem_len, segment_len), mem_len)


class _TakingTurns:
    """The CUDA runtime for threads of which one may be in ONNX Runtime.

    While that captures, what others call would become a part of its graph, their work being in the same stream, or
    spoil it.
    """

    def __init__(self, api: Any, turn: threading.RLock) -> None:
        self._api, self._turn = api, turn

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            with self._turn:
                return found(*arguments)

        setattr(self, name, call)  # made once
        return call


class OnnxRuntimeCuda(DeviceModel):
    """A bundle whose graphs run in the CUDA provider, all sessions' work in one stream, one thread at a time."""

    name = NAME
    launches = False  # it captures calls itself

    def __init__(self, bundle: Bundle, calls: Cuda, segment_len: int, mem_len: int | None) -> None:
        """Load the first graph, since a provider that cannot be loaded shows only then."""
        self.turn = threading.RLock()
        calls.api = _TakingTurns(calls.api, self.turn)
        super().__init__(bundle, calls, segment_len, mem_len, fixed_rows=False)
        self._stream = calls.stream()
        self._sessions: dict[tuple[str, int, int], ort.InferenceSession] = {}
        self._lock = threading.Lock()
        self._numbered = 0
        m = bundle.manifest
        self.session(m.graphs[0], 1, m.rows if self.sizes else 0)

    def stream(self) -> Owned:
        """The provider's, which is told it when a graph is loaded."""
        return self._stream

    def prepare(self, head: str, length: int, batch_size: int = 1) -> None:
        """Load the graph that a call of `length` tokens of `batch_size` streams runs on."""
        m = dataclasses.replace(self.bundle.manifest, mem_len=self.info.mem_len)
        self.session(self.graph(head, length), batch_size, m.rows if self.sizes else 0)

    def warm_up(self) -> None:
        """Load every graph for one stream."""
        for graph in self.bundle.manifest.graphs:
            self.prepare(graph.head, graph.segment.lo)

    def executor(self, graph: GraphSpec, batch_size: int, rows: int, stream: Owned, scratch: Any) -> Executor:
        """Bindings of a graph."""
        del stream, scratch
        return BoundSession(self, graph, batch_size, rows)

    def session(self, graph: GraphSpec, batch_size: int, rows: int) -> ort.InferenceSession:
        """The graph's session for so many streams and rows, loaded at the first use.

        Raises:
            EnvironmentMismatch: the provider cannot be loaded.
            DeviceError: it refuses the graph, for want of memory or else.
        """
        key = (graph.file, batch_size, rows)
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._load(graph, {"batch": batch_size} | ({"rows": rows} if rows else {}))
            return self._sessions[key]

    def captures(self, graph: GraphSpec) -> bool:
        """Whether calls are run as CUDA graphs: where lengths vary some shapes are computed on the host."""
        return self.capture and graph.segment.fixed

    def number(self, graph: GraphSpec) -> int:
        """What a new kind of calls is captured under: no two share one, since its addresses are captured with it.

        ONNX Runtime gives nothing back of what it captured, so there are so many and no more.
        """
        if not self.captures(graph) or self._numbered >= MOST_NUMBERED:
            return _NOT_CAPTURED
        self._numbered += 1
        return self._numbered

    def _load(self, graph: GraphSpec, sizes: dict[str, int]) -> ort.InferenceSession:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        session = self._made(graph, options)
        if session.get_providers()[0] != PROVIDER:
            raise EnvironmentMismatch(
                "ONNX Runtime could not load its CUDA provider and would run on the host: see 'txl-export doctor'"
            )
        return session

    def _made(self, graph: GraphSpec, options: ort.SessionOptions) -> ort.InferenceSession:
        import onnxruntime as ort

        told = {
            "device_id": "0",
            "user_compute_stream": str(int(self._stream.handle)),
            "enable_cuda_graph": str(int(self.captures(graph))),
            "use_tf32": "0",  # products of what is kept in fp32 would lose the bits it is kept for
        }
        path = self.bundle.path / graph.file
        try:
            with self.turn:
                return ort.InferenceSession(path, options, providers=[(PROVIDER, told)])
        except Exception as e:  # its errors have no public base class
            raise DeviceError(
                f"{path} cannot be loaded on the GPU ({first_line(e)[:200]}): use --backend onnxruntime"
            ) from None


class BoundSession:
    """One graph's calls in a session: bound by address, each kind once."""

    def __init__(self, model: OnnxRuntimeCuda, graph: GraphSpec, batch_size: int, rows: int) -> None:
        """Load the graph."""
        self._model, self._graph = model, graph
        self._session = model.session(graph, batch_size, rows)
        m = model.bundle.manifest
        self._tensors = [(t, True) for t in m.inputs(graph)] + [(t, False) for t in m.outputs(graph)]
        self._sizes = {"batch": batch_size, "rows": rows}
        self._kinds: dict[tuple[int, ...], tuple[ort.IOBinding, ort.RunOptions]] = {}

    def shape(self, length: int) -> None:
        """See `Executor.shape`."""
        self._sizes["segment"] = length

    def enqueue(self, addresses: Addresses) -> None:
        """See `Executor.enqueue`; ONNX Runtime captures the work itself, by the number that a kind of calls has."""
        kind = (self._sizes.get("segment", 0), *addresses.values())
        with self._model.turn:
            if kind not in self._kinds:
                if len(self._kinds) >= MOST_CAPTURED:
                    self._kinds.pop(next(iter(self._kinds)))
                self._kinds[kind] = self._bound(addresses)
            try:
                self._session.run_with_iobinding(*self._kinds[kind])
            except Exception as e:  # its errors have no public base class
                raise DeviceError(f"{self._graph.file} failed on the GPU ({first_line(e)[:200]})") from None

    def _bound(self, addresses: Addresses) -> tuple[ort.IOBinding, ort.RunOptions]:
        import onnxruntime as ort

        binding, options = self._session.io_binding(), ort.RunOptions()
        options.add_run_config_entry("gpu_graph_annotation_id", str(self._model.number(self._graph)))
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # who wants an answer waits
        for tensor, given in self._tensors:
            bind = binding.bind_input if given else binding.bind_output
            shape = tensor.sized(self._sizes).shape
            bind(tensor.name, "cuda", 0, _element(tensor), shape, addresses[tensor.name])
        return binding, options


def _element(tensor: TensorSpec) -> Any:
    return _BFLOAT16 if tensor.dtype == "bfloat16" else np.dtype(tensor.dtype).type
