"""Streams of the stand-in: work waits in them until something synchronises, as it may on a GPU that is slow."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import cuda.bindings.runtime as genuine

from tests.standin.memory import Code, CudaFault, Range

Mode = genuine.cudaStreamCaptureMode
ORDERS = ("late", "early")
# Handles of the default streams: the legacy one is also 0, that of a thread is only one, for all threads.
LEGACY, PER_THREAD = int(genuine.cudaStreamLegacy), int(genuine.cudaStreamPerThread)
DEFAULTS = (0, PER_THREAD)


@dataclass(eq=False)
class Work:
    """Something queued.

    Attributes:
        label: what it is, for messages.
        run: does it.
        reads: bytes that it reads.
        writes: bytes that it writes.
        after: work of another stream that must have been done before.
        at: when it was done, in ticks; None until then.
    """

    label: str
    run: Callable[[], None] = lambda: None
    reads: Sequence[Range] = ()
    writes: Sequence[Range] = ()
    after: Work | None = None
    stream: Stream | None = None
    at: int | None = None

    def races(self, other: Work) -> bool:
        """Whether what they leave depends on which is done first."""
        return any(a.overlaps(b) for a in self.writes for b in (*other.reads, *other.writes)) or any(
            a.overlaps(b) for a in self.reads for b in other.writes
        )


@dataclass(eq=False)
class Capture:
    """What a stream records instead of running it, and who may not disturb it."""

    mode: Mode
    thread: int
    work: list[Work] = field(default_factory=list)
    invalid: bool = False

    def binds(self) -> bool:
        """Whether the running thread must leave out what is unsafe during a capture."""
        own = self.thread == threading.get_ident()
        return self.mode == Mode.cudaStreamCaptureModeGlobal or (own and self.mode != Mode.cudaStreamCaptureModeRelaxed)


@dataclass(eq=False)
class Stream:
    """A queue."""

    handle: int
    queue: deque[Work] = field(default_factory=deque)
    capture: Capture | None = None
    alive: bool = True


class Queues:
    """All streams of the device, those that were destroyed with work left among them.

    Attributes:
        order: "late" does work only when it is asked for, of several streams the newest first; "early" does it as
            soon as it may be done. A device may do either.
        broken: the code that ended everything, as a wild address does.
        reasons: what went wrong, a line each.
    """

    def __init__(self) -> None:
        """Begin with the default streams alone, that of the process and that of a thread."""
        self.order = "late"
        self.broken: Code | None = None
        self.reasons: list[str] = []
        self.streams = [Stream(handle) for handle in DEFAULTS]
        self._ticks = 0

    def find(self, handle: int) -> Stream | None:
        """The living stream of a handle."""
        wanted = DEFAULTS[0] if handle == LEGACY else handle
        return next((s for s in self.streams if s.handle == wanted and s.alive), None)

    def captures(self) -> Iterator[Capture]:
        """Those under way."""
        return (s.capture for s in self.streams if s.capture is not None)

    def put(self, stream: Stream, work: Work) -> None:
        """Queue work, or record it; raises CudaFault for a capture that was disturbed."""
        if stream.capture is not None:
            if stream.capture.invalid:
                raise CudaFault(Code.cudaErrorStreamCaptureInvalidated, "the capture was disturbed before")
            stream.capture.work.append(work)
            return
        work.stream = stream
        stream.queue.append(work)
        if self.order == "early":
            with contextlib.suppress(CudaFault):  # whoever synchronises is told
                self.drain(stream)

    def drain(self, stream: Stream, until: Work | None = None) -> None:
        """Do a stream's work, all of it or up to some; raises CudaFault for what goes wrong."""
        while stream.queue and (until is None or until.at is None):
            self.step(stream)

    def step(self, stream: Stream) -> None:
        """Do a stream's next work, and before it what that waits for."""
        after = stream.queue[0].after
        if after is not None and after.at is None and after.stream is not None:
            self.drain(after.stream, after)
        work = stream.queue.popleft()
        try:
            self._check_races(work, stream)
            work.run()
        except CudaFault as e:
            self.end(e.code, f"{work.label}: {e.reason}")
            raise
        self._ticks += 1
        work.at = self._ticks

    def drain_all(self) -> None:
        """Do all work of all streams, the newest stream's first."""
        for stream in reversed(self.streams):
            self.drain(stream)
        self.streams = [s for s in self.streams if s.alive]

    def end(self, code: Code, reason: str) -> None:
        """Nothing works from now on; what is queued is dropped."""
        self.broken = code
        self.reasons.append(f"{code.name}: {reason}")
        for stream in self.streams:
            stream.queue.clear()

    def _check_races(self, work: Work, own: Stream) -> None:
        """Raise CudaFault where another stream could be doing, at this moment, what disturbs this work."""
        for stream in self.streams:
            for other in stream.queue if stream is not own else ():
                if other.after is not None and other.after.at is None:
                    break  # what stands behind waits for something
                if work.races(other):
                    reason = f"races with {other.label} of another stream, neither waits for the other"
                    raise CudaFault(Code.cudaErrorIllegalAddress, reason)
