"""Engines of a bundle on the GPU: one for each graph, shared by sessions, each with a context of its own.

Source of names: the Python bindings of TensorRT 11 and TensorRT-RTX 1.7, which agree in all that is used here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl_export.backends.base import Streams
from txl_export.backends.device.calls import Block, Cuda, Owned
from txl_export.backends.device.launch import Addresses, Executor
from txl_export.backends.device.model import DeviceModel
from txl_export.building.messages import cause
from txl_export.building.native import Native
from txl_export.bundle import Bundle, GraphSpec, TensorSpec
from txl_export.engines import EngineSpec
from txl_export.errors import DeviceError, InputError


@dataclass(frozen=True)
class Loaded:
    """An engine.

    Attributes:
        spec: what the manifest says of it.
        engine: the package's own object.
        inputs: of its graph.
        again: the command that builds it.
    """

    spec: EngineSpec
    engine: Any
    inputs: tuple[TensorSpec, ...]
    again: str


def check_batch(engines: Iterable[EngineSpec], batch_size: int, bundle: Path) -> None:
    """Raise InputError where engines of a bundle are built for other numbers of streams."""
    for engine in engines:
        least, _, most = engine.batch
        if not least <= batch_size <= most:
            raise InputError(
                f"batch_size is {batch_size}, the engines of {bundle} take {least} to {most} streams: "
                f"build with '--batch {min(least, batch_size)}:{batch_size}:{max(most, batch_size)}'"
            )


class TensorRTModel(DeviceModel):
    """A bundle whose graphs run as TensorRT engines."""

    def __init__(
        self,
        bundle: Bundle,
        cuda: Cuda,
        segment_len: int,
        mem_len: int | None,
        native: Native,
        engines: Mapping[str, Loaded],
    ) -> None:
        """Take engines by graph file, all checked, and what loaded them, which must live as long as they."""
        super().__init__(bundle, cuda, segment_len, mem_len, fixed_rows=True)
        self.native, self.engines = native, engines
        self.name = next(iter(engines.values())).spec.package

    def streams(self, batch_size: int, mem_len: int | None = None) -> Streams:
        """Memory for `batch_size` streams, at their start.

        Raises:
            InputError: engines are built for other numbers of streams.
            DeviceError: no room.
        """
        check_batch([loaded.spec for loaded in self.engines.values()], batch_size, self.bundle.path)
        return super().streams(batch_size, mem_len)

    def scratch(self) -> Block:
        """Memory for what is computed in between, enough for every engine."""
        size = max(int(loaded.engine.device_memory_size_v2) for loaded in self.engines.values())
        return self.cuda.allocate(size, "what a session computes in between")

    def executor(self, graph: GraphSpec, batch_size: int, rows: int, stream: Owned, scratch: Block) -> Executor:
        """A context of a graph's engine."""
        return Context(self, self.engines[graph.file], batch_size, rows, stream, scratch)


class Context:
    """An execution context: shapes are set when they change, addresses when they do."""

    def __init__(
        self, model: TensorRTModel, loaded: Loaded, batch_size: int, rows: int, stream: Owned, scratch: Block
    ) -> None:
        """Make a context that works in a session's scratch memory; raises DeviceError."""
        self._model, self._loaded, self._stream = model, loaded, stream
        self._sizes = {"batch": batch_size, "rows": rows}
        self._scratch = scratch  # as long as the context may use it
        self._set: dict[str, int] = {}
        strategy = model.native.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        self._context = self._asked("make a context", loaded.engine.create_execution_context, strategy)
        self._context.set_device_memory(scratch.address, scratch.nbytes)

    def shape(self, length: int) -> None:
        """See `Executor.shape`."""
        sizes = self._sizes | {"segment": length}
        for tensor in self._loaded.inputs:
            shape = tensor.sized(sizes).shape
            self._asked(f"take {tensor.name} {list(shape)}", self._context.set_input_shape, tensor.name, shape)
        missing = self._context.infer_shapes()
        if missing:
            raise self._refused(f"know the shapes of {', '.join(missing)}")

    def enqueue(self, addresses: Addresses) -> None:
        """See `Executor.enqueue`."""
        for name, address in addresses.items():
            if self._set.get(name) != address:
                self._asked(f"take the address of {name}", self._context.set_tensor_address, name, address)
                self._set[name] = address
        self._asked("run", self._context.execute_async_v3, int(self._stream.handle))

    def _asked(self, what: str, ask: Callable[..., Any], *arguments: Any) -> Any:
        """What a call gives; the package answers trouble with False, None or an exception that says little."""
        self._model.native.errors.clear()
        try:
            answer = ask(*arguments)
        except (RuntimeError, ValueError, TypeError) as e:
            self._model.native.errors.append(str(e))
            answer = None
        if not answer:
            raise self._refused(what)
        return answer

    def _refused(self, what: str) -> DeviceError:
        told = cause(self._model.native.errors)
        return DeviceError(
            f"engine {self._loaded.spec.file} does not {what} ({told}): build again with '{self._loaded.again}'"
        )
