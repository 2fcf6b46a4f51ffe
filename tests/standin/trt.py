"""Stands for the module `tensorrt`: runtime and engines; contexts, which run, are in `trt_context`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tests.standin import trt_names
from tests.standin.device import StandIn
from tests.standin.memory import CudaFault
from tests.standin.plan_files import VERSIONS, Dim, Plan, Tensor, tensors_of
from tests.standin.trt_context import IExecutionContext
from tests.standin.trt_names import DataType, Dims, ILogger, Severity, TensorIOMode, TensorLocation
from txl_export.building.packages import PACKAGES

_TYPES = {
    "float32": DataType.FLOAT,
    "float16": DataType.HALF,
    "int32": DataType.INT32,
    "int64": DataType.INT64,
    "bool": DataType.BOOL,
}
_STATIC = trt_names.ExecutionContextAllocationStrategy.STATIC


class ICudaEngine:
    """An engine: the graph that a plan names."""

    def __init__(self, gpu: StandIn, plan: Plan, logger: ILogger) -> None:
        self._gpu, self._plan, self._logger = gpu, plan, logger
        self._tensors = {t.name: t for t in tensors_of(Path(plan.graph))}

    def _say(self, message: str, severity: Severity = Severity.ERROR) -> None:
        """Log a line."""
        self._gpu.said.append(message)
        self._logger.log(severity, message)

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return 1

    @property
    def device_memory_size_v2(self) -> int:
        """Not a round number, and another for every graph."""
        return 0x600 * (7 + len(self._tensors))

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(-1 if isinstance(n, str) else n for n in self._dims(name))

    def get_tensor_dtype(self, name: str) -> DataType:
        return _TYPES[self._tensors[name].dtype] if self._knows(name) else DataType.FLOAT

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        if not self._knows(name):
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if self._tensors[name].is_input else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> TensorLocation:
        self._knows(name)
        return TensorLocation.DEVICE

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._plan.aliases.get(name)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        if profile_index or name not in self._plan.profiles:
            self._say(f"ICudaEngine::getProfileShape: {name!r} has no profile {profile_index}")
            return []
        return [Dims(shape) for shape in self._plan.profiles[name]]

    def create_execution_context(self, strategy: Any = _STATIC) -> IExecutionContext | None:
        """With strategy STATIC the context takes its scratch memory from the device."""
        with self._gpu.lock:
            try:
                if self._gpu.count("create_execution_context") is not None:
                    self._say("IExecutionContext: it was told to fail")
                    return None
                return IExecutionContext(self, strategy)
            except CudaFault as e:
                self._say(f"IExecutionContext: Error Code 2: OutOfMemory ({e.reason})")
                return None

    def _knows(self, name: str) -> bool:
        if name not in self._tensors:
            self._say(f"Error Code 3: API Usage Error ({name!r} is no input or output)")
        return name in self._tensors

    def _dims(self, name: str) -> tuple[Dim, ...]:
        """A tensor's shape, symbolic where a context may choose."""
        return self._tensors[name].sized(self._plan.sizes) if self._knows(name) else ()

    def _of_mode(self, is_input: bool) -> Iterator[Tensor]:
        """Inputs, or outputs."""
        return (t for t in self._tensors.values() if t.is_input == is_input)


class Runtime:
    """What makes engines of plans."""

    _gpu: StandIn
    _package: str

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger) or not getattr(logger, "_made", False):
            raise TypeError("__init__(): incompatible constructor arguments: logger is no ILogger")
        self.logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        """None, and a line in the log, for what is no plan of this package, version and GPU."""
        with self._gpu.lock:
            injected = self._gpu.count("deserialize_cuda_engine")
            plan = Plan.from_bytes(bytes(serialized_engine))
            wrong = "it was told to fail" if injected is not None else self._refusal(plan)
            if wrong or plan is None:
                message = f"IRuntime::deserializeCudaEngine: Error Code 1: Serialization ({wrong})"
                self._gpu.said.append(message)
                self.logger.log(Severity.ERROR, message)
                return None
            return ICudaEngine(self._gpu, plan, self.logger)

    def _refusal(self, plan: Plan | None) -> str | None:
        device = self._gpu.device
        if plan is None:
            return "Serialization assertion magicTagRead == kMAGIC_TAG failed. Magic tag does not match"
        if (plan.package, plan.version) != (self._package, VERSIONS[self._package]):
            return f"Version tag does not match: this engine was built with {plan.package} {plan.version}"
        if plan.gpu not in (None, (device.name, device.capability)):
            return f"Target GPU does not match: this engine was built on {plan.gpu}"
        return None


class TensorRT:
    """The module."""

    DataType = DataType
    TensorIOMode = TensorIOMode
    TensorLocation = TensorLocation
    ExecutionContextAllocationStrategy = trt_names.ExecutionContextAllocationStrategy
    Dims = Dims
    ILogger = ILogger
    Logger = trt_names.Logger
    ICudaEngine = ICudaEngine
    IExecutionContext = IExecutionContext

    def __init__(self, gpu: StandIn, package: str = "tensorrt") -> None:
        """Stand for a package on a device."""
        self.__version__ = VERSIONS[package]
        self.__name__ = PACKAGES[package].module
        self.__spec__ = ModuleSpec(self.__name__, None)  # others look whether there is such a module
        self.Runtime = type("Runtime", (Runtime,), {"_gpu": gpu, "_package": package})
