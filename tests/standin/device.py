"""The stand-in for a GPU: what it has, what was called, and which calls are made to fail."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.standin.memory import Code, CudaFault, Memory
from tests.standin.queues import Queues
from txl_export.backends.cuda import Device

DEVICE = Device("NVIDIA L4", "sm89")
CAPACITY = 1 << 30
# Codes after which a process's use of the GPU is over.
STICKY = (
    Code.cudaErrorIllegalAddress,
    Code.cudaErrorLaunchFailure,
    Code.cudaErrorLaunchTimeout,
    Code.cudaErrorMisalignedAddress,
    Code.cudaErrorIllegalInstruction,
    Code.cudaErrorAssert,
    Code.cudaErrorECCUncorrectable,
    Code.cudaErrorHardwareStackError,
)
# Calls that do what they do even when they fail.
_DONE_ANYWAY = ("cudaStreamEndCapture",)


class StandIn:
    """One device.

    Attributes:
        device: what it is taken for.
        memory: allocations; `capacity` can be changed.
        queues: streams and what is queued in them; `order` can be changed.
        calls: how often each function of CUDA and TensorRT was called, by name; "engine run" counts runs.
        said: lines of the TensorRT stand-in's log, of all loggers.
    """

    def __init__(self, device: Device = DEVICE, capacity: int = CAPACITY) -> None:
        """Begin with nothing allocated."""
        self.device = device
        self.memory, self.queues = Memory(capacity), Queues()
        self.calls: Counter[str] = Counter()
        self.said: list[str] = []
        self.lock = threading.RLock()
        self.last = Code.cudaSuccess
        self._faults: list[tuple[str, int, Code]] = []

    @property
    def capacity(self) -> int:
        """Bytes of device memory in all."""
        return self.memory.capacity

    @capacity.setter
    def capacity(self, value: int) -> None:
        self.memory.capacity = value

    @property
    def live_bytes(self) -> int:
        """Bytes of device memory that are allocated."""
        return self.memory.live_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked memory that are allocated."""
        return self.memory.pinned_bytes

    @property
    def reasons(self) -> list[str]:
        """Why calls and work failed, a line each."""
        return self.queues.reasons

    def fail(self, name: str, nth: int = 1, code: Code = Code.cudaErrorUnknown) -> None:
        """Make the nth call from now on fail.

        Args:
            name: of a function of CUDA, which returns the code; of TensorRT's `execute_async_v3`,
                `deserialize_cuda_engine` or `create_execution_context`, which answer as they do; or "engine run",
                a run on the device, which ends everything with the code.
            nth: 1 is the next call.
            code: what a function of CUDA returns.
        """
        self._faults.append((name, self.calls[name] + nth, code))

    def count(self, name: str) -> Code | None:
        """Count a call; the code that it is to fail with, if any."""
        self.calls[name] += 1
        due = [f for f in self._faults if f[:2] == (name, self.calls[name])]
        self._faults = [f for f in self._faults if f not in due]
        return due[0][2] if due else None

    def answer(self, name: str, values: int, work: Callable[[], Any]) -> tuple[Any, ...]:
        """What a function of CUDA returns: the code, and as many values, which are None when it failed."""
        with self.lock:
            try:
                injected = self.count(name)
                if injected is None or name in _DONE_ANYWAY:
                    given = self._do(work)
                if injected is not None:
                    raise CudaFault(injected, "it was told to fail")
            except CudaFault as e:
                return (self._failed(name, e), *[None] * values)
            return (Code.cudaSuccess, *(given if values > 1 else [given] * values))

    def _do(self, work: Callable[[], Any]) -> Any:
        if self.queues.broken is not None:
            raise CudaFault(self.queues.broken, "an earlier error ended everything")
        return work()

    def _failed(self, name: str, fault: CudaFault) -> Code:
        self.last = fault.code
        if fault.code in STICKY and self.queues.broken is None:
            self.queues.end(fault.code, f"{name}: {fault.reason}")
        else:
            self.reasons.append(f"{name}: {fault}")
        return fault.code
