"""Stands for the module `cuda.bindings.runtime`: captures, graphs, and the module as a whole."""

from __future__ import annotations

import threading
from typing import Any

import cuda.bindings.runtime as genuine

from tests.standin.cudart import MemoryCalls, function, handle_of
from tests.standin.cudart_streams import DeviceCalls, StreamCalls
from tests.standin.device import StandIn
from tests.standin.memory import Code, CudaFault
from tests.standin.queues import DEFAULTS, Capture, Mode, Work


class GraphCalls(StreamCalls):
    """Captures, and the graphs that they give."""

    def __init__(self, gpu: StandIn) -> None:
        super().__init__(gpu)
        self.graphs: dict[int, list[Work]] = {}
        self.executables: dict[int, list[Work]] = {}

    @function()
    def cudaStreamBeginCapture(self, stream: Any, mode: Mode) -> None:
        found = self.stream(stream)
        if found.handle == DEFAULTS[0]:
            raise CudaFault(Code.cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured")
        if found.capture is not None:
            raise CudaFault(Code.cudaErrorIllegalState, "the stream is being captured already")
        found.capture = Capture(Mode(mode), threading.get_ident())

    @function(1)
    def cudaStreamIsCapturing(self, stream: Any) -> Any:
        capture, status = self.stream(stream).capture, genuine.cudaStreamCaptureStatus
        if capture is None:
            return status.cudaStreamCaptureStatusNone
        return status.cudaStreamCaptureStatusInvalidated if capture.invalid else status.cudaStreamCaptureStatusActive

    @function(1)
    def cudaStreamEndCapture(self, stream: Any) -> Any:
        found = self.stream(stream)
        capture = found.capture
        if capture is None:
            raise CudaFault(Code.cudaErrorIllegalState, "the stream is not being captured")
        if capture.thread != threading.get_ident() and capture.mode != Mode.cudaStreamCaptureModeRelaxed:
            raise CudaFault(Code.cudaErrorStreamCaptureWrongThread, "another thread began the capture")
        found.capture = None
        if capture.invalid:
            raise CudaFault(Code.cudaErrorStreamCaptureInvalidated, "the capture was disturbed")
        return genuine.cudaGraph_t(self._keep(self.graphs, capture.work))

    def _keep(self, among: dict[int, list[Work]], work: list[Work]) -> int:
        handle = next(self._handles)
        among[handle] = list(work)
        return handle

    @function(1)
    def cudaGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return genuine.cudaGraphExec_t(self._keep(self.executables, _known(self.graphs, graph)))

    @function()
    def cudaGraphLaunch(self, graphExec: Any, stream: Any) -> None:
        nodes = _known(self.executables, graphExec)

        def run() -> None:
            for node in nodes:
                node.run()

        reads, writes = ([r for n in nodes for r in getattr(n, kind)] for kind in ("reads", "writes"))
        self.queues.put(self.stream(stream), Work("a graph", run, reads, writes))

    @function()
    def cudaGraphExecDestroy(self, graphExec: Any) -> None:
        _known(self.executables, graphExec)
        del self.executables[handle_of(graphExec)]

    @function()
    def cudaGraphDestroy(self, graph: Any) -> None:
        _known(self.graphs, graph)
        del self.graphs[handle_of(graph)]


def _known(among: dict[int, list[Work]], handle: Any) -> list[Work]:
    if handle_of(handle) not in among:
        raise CudaFault(Code.cudaErrorInvalidValue, f"there is no graph {handle}")
    return among[handle_of(handle)]


class Cudart(MemoryCalls, DeviceCalls, GraphCalls):
    """The module: what is no function is the genuine one's."""

    __name__ = genuine.__name__
    __spec__ = genuine.__spec__

    def __getattr__(self, name: str) -> Any:
        found = None if name.startswith("_") else getattr(genuine, name, None)
        if found is None or (callable(found) and not isinstance(found, type)):
            raise AttributeError(f"the stand-in for cuda.bindings.runtime has no {name}")
        return found
