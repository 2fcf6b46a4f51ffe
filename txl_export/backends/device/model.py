"""A bundle on a GPU, whatever runs its graphs there."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from txl_export.backends.base import LoadedModel, Streams, bundle_info
from txl_export.backends.device.calls import Cuda, Owned
from txl_export.backends.device.launch import Executor
from txl_export.backends.device.streams import DeviceRing, DeviceTurns
from txl_export.backends.ring import RingSizes, with_mem_len
from txl_export.bundle import Bundle, GraphSpec


class DeviceModel(LoadedModel):
    """A bundle whose sessions keep their memory on the device.

    Attributes:
        cuda: the GPU.
        bundle: what is run.
        capture: whether calls that come again are run as CUDA graphs.
        launches: whether that is done here, and not by what runs the graphs.
    """

    capture = True
    launches = True

    def __init__(self, bundle: Bundle, cuda: Cuda, segment_len: int, mem_len: int | None, fixed_rows: bool) -> None:
        """Take a bundle.

        Args:
            bundle: what is run.
            cuda: the GPU.
            segment_len: tokens after which feeds are cut by default.
            mem_len: tokens that sessions remember by default; None for M.
            fixed_rows: whether graphs take memory tensors of the bundle's own M only.
        """
        self.bundle, self.cuda = bundle, cuda
        m = bundle.manifest
        self._graphs = {(g.head, g.segment): g for g in m.graphs}
        self.sizes = RingSizes.of(bundle, fixed_rows) if m.traits.in_place else None
        self.info = with_mem_len(bundle_info(bundle, segment_len), mem_len)

    def graph(self, head: str, length: int) -> GraphSpec:
        """The graph for a call of `length` tokens: the one made for that length before a range."""
        return self._graphs[head, next(s for s in self.info.segments if length in s)]

    def streams(self, batch_size: int, mem_len: int | None = None) -> Streams:
        """Memory for `batch_size` streams, at their start; raises DeviceError where there is no room."""
        if self.sizes:
            return DeviceRing(self, self.sizes, batch_size, mem_len)
        return DeviceTurns(self, batch_size)

    def stream(self) -> Owned:
        """The stream of a new session."""
        return self.cuda.stream()

    def scratch(self) -> Any:
        """What all executors of a session share, since they run one after the other."""
        return None

    @abstractmethod
    def executor(self, graph: GraphSpec, batch_size: int, rows: int, stream: Owned, scratch: Any) -> Executor:
        """What runs a graph for a session.

        Args:
            graph: which.
            batch_size: streams.
            rows: of memory tensors that are written in place; 0 in other layouts.
            stream: the session's.
            scratch: what `scratch` gave.
        """
