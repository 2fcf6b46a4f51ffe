"""Stands for the module `cuda.bindings.runtime`: the device, streams and events."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import cuda.bindings.runtime as genuine

from tests.standin.cudart import Part, function, handle_of
from tests.standin.device import StandIn
from tests.standin.memory import Code, CudaFault
from tests.standin.queues import Stream, Work


@dataclass(eq=False)
class Event:
    """What is done once the work in front of it is."""

    timed: bool
    record: Work | None = None
    captured: bool = False


class DeviceCalls(Part):
    """The device as a whole."""

    @function()
    def cudaSetDevice(self, device: int) -> None:
        if device != 0:
            raise CudaFault(Code.cudaErrorInvalidDevice, f"there is one device, not {device + 1}")

    @function(1)
    def cudaGetDevice(self) -> int:
        return 0

    @function(1)
    def cudaGetDeviceCount(self) -> int:
        return 1

    @function(1)
    def cudaDriverGetVersion(self) -> int:
        return 13000

    @function(1)
    def cudaRuntimeGetVersion(self) -> int:
        return 13000

    @function()
    def cudaDeviceSynchronize(self) -> None:
        self.unsafe()
        self.queues.drain_all()

    def cudaGetLastError(self) -> tuple[Code]:
        """The last error, which is forgotten unless it ended everything."""
        last, self.gpu.last = self.queues.broken or self.gpu.last, Code.cudaSuccess
        return (last,)

    def cudaGetErrorName(self, error: Code) -> tuple[Code, bytes]:
        return genuine.cudaGetErrorName(error)

    def cudaGetErrorString(self, error: Code) -> tuple[Code, bytes]:
        return genuine.cudaGetErrorString(error)


class StreamCalls(Part):
    """Streams and events."""

    def __init__(self, gpu: StandIn) -> None:
        super().__init__(gpu)
        self._handles = itertools.count(0x5000, 0x10)
        self.events: dict[int, Event] = {}

    @function(1)
    def cudaStreamCreateWithFlags(self, flags: int) -> Any:
        handle = next(self._handles)
        self.queues.streams.append(Stream(handle))
        return genuine.cudaStream_t(handle)

    @function()
    def cudaStreamDestroy(self, stream: Any) -> None:
        """What is queued will be done; who asks for the stream again is refused."""
        found = self.stream(stream)
        self.not_capturing(found)
        found.alive = False
        self.queues.streams = [s for s in self.queues.streams if s.alive or s.queue]

    @function()
    def cudaStreamSynchronize(self, stream: Any) -> None:
        found = self.stream(stream)
        self.not_capturing(found)
        self.queues.drain(found)

    @function()
    def cudaStreamQuery(self, stream: Any) -> None:
        """Who asks again and again is not kept waiting for ever: the device goes on by one work each time."""
        found = self.stream(stream)
        self.not_capturing(found)
        if found.queue:
            self.queues.step(found)
            raise CudaFault(Code.cudaErrorNotReady, "work is left")

    @function()
    def cudaStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        found, awaited = self.stream(stream), self._event(event)
        if awaited.captured or (found.capture is not None and awaited.record is not None):
            raise CudaFault(Code.cudaErrorStreamCaptureIsolation, "event and stream are not of one capture")
        if awaited.record is not None:
            self.queues.put(found, Work("a wait for an event", after=awaited.record))

    @function(1)
    def cudaEventCreateWithFlags(self, flags: int) -> Any:
        handle = next(self._handles)
        self.events[handle] = Event(not flags & genuine.cudaEventDisableTiming)
        return genuine.cudaEvent_t(handle)

    @function()
    def cudaEventRecord(self, event: Any, stream: Any) -> None:
        found, recorded = self._event(event), self.stream(stream)
        work = Work("an event")
        self.queues.put(recorded, work)
        found.record, found.captured = work, recorded.capture is not None

    @function()
    def cudaEventSynchronize(self, event: Any) -> None:
        record = self._event_to_ask(event).record
        if record is not None and record.at is None and record.stream is not None:
            self.queues.drain(record.stream, record)

    @function()
    def cudaEventQuery(self, event: Any) -> None:
        record = self._event_to_ask(event).record
        if record is not None and record.at is None and record.stream is not None:
            self.queues.step(record.stream)
            raise CudaFault(Code.cudaErrorNotReady, "work is left before the event")

    @function(1)
    def cudaEventElapsedTime(self, start: Any, end: Any) -> float:
        """Milliseconds: every work takes a thousandth."""
        events = [self._event_to_ask(e) for e in (start, end)]
        records = [e.record for e in events if e.timed and e.record is not None]
        if len(records) < 2:
            raise CudaFault(Code.cudaErrorInvalidResourceHandle, "an event was not recorded, or without a time")
        began, ended = (r.at for r in records)
        if began is None or ended is None:
            raise CudaFault(Code.cudaErrorNotReady, "an event has not been reached")
        return (ended - began) / 1000

    @function()
    def cudaEventDestroy(self, event: Any) -> None:
        self._event(event)
        del self.events[handle_of(event)]

    def _event(self, handle: Any) -> Event:
        if handle_of(handle) not in self.events:
            raise CudaFault(Code.cudaErrorInvalidResourceHandle, f"there is no event {handle}")
        return self.events[handle_of(handle)]

    def _event_to_ask(self, handle: Any) -> Event:
        event = self._event(handle)
        if event.captured:
            raise CudaFault(Code.cudaErrorCapturedEvent, "the event was recorded in a capture")
        return event
