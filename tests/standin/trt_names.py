"""Stands for the module `tensorrt`: its enums and loggers, under the names that the genuine 11.4 has."""

from __future__ import annotations

import enum
import sys
from typing import Any, ClassVar


class Severity(enum.Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class DataType(enum.Enum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8
    INT4 = 9
    FP4 = 10


class TensorIOMode(enum.Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(enum.Enum):
    DEVICE = 0
    HOST = 1


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class Dims:
    """A shape: no tuple, but equal to one."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any = ()) -> None:
        self._shape = tuple(shape)

    def __len__(self) -> int:
        return len(self._shape)

    def __getitem__(self, axis: Any) -> Any:
        return self._shape[axis]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, tuple)):
            raise TypeError("__eq__(): incompatible function arguments")
        return self._shape == tuple(other)

    def __repr__(self) -> str:
        return repr(self._shape)


class ILogger:
    """To be derived from, as the genuine one: `log` is the derived class's."""

    Severity: ClassVar[type[Severity]] = Severity
    INTERNAL_ERROR: ClassVar[Severity] = Severity.INTERNAL_ERROR
    ERROR: ClassVar[Severity] = Severity.ERROR
    WARNING: ClassVar[Severity] = Severity.WARNING
    INFO: ClassVar[Severity] = Severity.INFO
    VERBOSE: ClassVar[Severity] = Severity.VERBOSE

    def __init__(self) -> None:
        self._made = True  # a derived class that does not call this is refused, as by pybind11

    def log(self, severity: Severity, msg: str) -> None:
        raise RuntimeError('Tried to call pure virtual function "ILogger::log"')


class Logger(ILogger):
    """Writes lines from a severity on."""

    def __init__(self, min_severity: Severity = Severity.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity: Severity, msg: str) -> None:
        if severity.value <= self.min_severity.value:
            print(f"[TRT] [{severity.name}] {msg}", file=sys.stderr)
