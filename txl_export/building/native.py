"""Calls into a TensorRT package, made in a process of its own: parse, look, build, look again. No torch, no onnx."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl_export.building.all_rows import with_all_rows
from txl_export.building.callbacks import logger, monitor
from txl_export.building.sizes import Sizes, graph_with_sizes

_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8",
    "FP4": "float4",
    "INT4": "int4",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}
# Layers that multiply matrices: of a fused attention only the one that gives the result.
_PRODUCTS = ("MATRIX_MULTIPLY", "EINSUM", "CONVOLUTION", "ATTENTION_OUTPUT", "MOE")


class RefusedError(Exception):
    """The package does not do what it was asked for.

    Attributes:
        lines: what it said, the cause first.
        node: name of the ONNX node, and its operator, where it names them.
    """

    def __init__(self, lines: list[str], node: str = "", operator: str = "") -> None:
        super().__init__(lines)
        self.lines, self.node, self.operator = lines, node, operator


class Native:
    """A package and the graph that it holds at present."""

    def __init__(self, trt: Any, warn: Callable[[str], None], progress: Callable[[str, float], bool]) -> None:
        """Take the imported package.

        Args:
            trt: the module.
            warn: called with each warning of the package.
            progress: called with the present phase and the share that is done; False ends the build.
        """
        self.trt, self._progress = trt, progress
        self.errors: list[str] = []
        self._logger = logger(trt, self.errors, warn)  # the library takes one per process
        self._builder: Any = None
        self._network: Any = None
        self._runtime: Any = None

    @property
    def capabilities(self) -> list[str]:
        """The compute capabilities that the package builds for: "sm75", ..."""
        members = getattr(self.trt, "ComputeCapability", None)
        names = members.__members__ if members is not None else ()
        return [n.lower() for n in names if n.startswith("SM")]

    def parse(self, graph: Path, sizes: Sizes) -> dict[str, Any]:
        """Read an ONNX file, some of its dimensions fixed; returns what became of it. Raises RefusedError."""
        self.errors.clear()
        trt = self.trt
        self._builder = self._made(lambda: trt.Builder(self._logger), "no builder")
        self._network = self._made(lambda: self._builder.create_network(_typed(trt)), "no network")
        parser = trt.OnnxParser(self._network, self._logger)
        model = graph_with_sizes(with_all_rows(graph.read_bytes()), sizes)
        if not parser.parse(model, str(graph)) or parser.num_errors:
            errors = [parser.get_error(i) for i in range(parser.num_errors)]
            told = errors[0] if errors else None
            lines = [*(e.desc() for e in errors), *self.errors]
            raise RefusedError(lines, told.node_name() if told else "", told.node_operator() if told else "")
        _let_decompose(trt, self._network)
        return _describe(trt, self._network)

    def _made(self, make: Callable[[], Any], otherwise: str) -> Any:
        """What a call gives; the package answers trouble with None, or with an exception that says nothing."""
        try:
            made = make()
        except (TypeError, RuntimeError, ValueError) as e:
            raise RefusedError([*self.errors, str(e)]) from None
        if made is None:
            raise RefusedError([*self.errors, otherwise])
        return made

    def build(self, options: dict[str, Any], plan: Path) -> dict[str, Any]:
        """Build the parsed graph into a file; returns its bytes and seconds. Raises RefusedError, OSError."""
        self.errors.clear()
        config = self._config(options)
        self._add_profile(config, options["profiles"])
        cache = Path(options["timing_cache"]) if options["timing_cache"] else None
        if cache:
            self._take_timings(config, cache)
        config.progress_monitor = monitor(self.trt, self._progress)
        began = time.monotonic()
        built = self._made(lambda: self._builder.build_serialized_network(self._network, config), "no plan")
        seconds = time.monotonic() - began
        with plan.open("wb") as f:
            f.write(memoryview(built))
            f.flush()
            os.fsync(f.fileno())
        if cache:
            _keep_timings(config, cache)
        return {"bytes": int(built.nbytes), "seconds": seconds}

    def _config(self, options: dict[str, Any]) -> Any:
        trt = self.trt
        config = self._builder.create_builder_config()
        # On unless told: products of what a half-precision graph keeps in fp32 would lose the bits it is kept for.
        (config.set_flag if options["tf32"] else config.clear_flag)(trt.BuilderFlag.TF32)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if options["opt_level"] is not None:
            config.builder_optimization_level = options["opt_level"]
        if options["workspace"] is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options["workspace"])
        wanted = options["capabilities"]
        if wanted:
            config.num_compute_capabilities = len(wanted)
            for i, name in enumerate(wanted):
                if not config.set_compute_capability(getattr(trt.ComputeCapability, name.upper()), i):
                    raise RefusedError([*self.errors, f"it does not take the compute capability {name}"])
        return config

    def _add_profile(self, config: Any, profiles: dict[str, list[list[int]]]) -> None:
        profile = self._builder.create_optimization_profile()
        for name, shapes in profiles.items():
            profile.set_shape(name, *shapes)
        if config.add_optimization_profile(profile) < 0:
            raise RefusedError([*self.errors, "it does not take the optimisation profile"])

    def _take_timings(self, config: Any, cache: Path) -> None:
        kept = cache.read_bytes() if cache.is_file() else b""
        if not config.set_timing_cache(config.create_timing_cache(kept), False):  # of another GPU or version
            config.set_timing_cache(config.create_timing_cache(b""), False)

    def inspect(self, plan: bytes) -> dict[str, Any]:
        """What an engine takes and gives. Needs a GPU; raises RefusedError where it cannot be loaded."""
        return describe_engine(self.load(plan))

    def load(self, plan: bytes) -> Any:
        """The package's engine of a plan. Needs a GPU; raises RefusedError where it cannot be loaded."""
        self.errors.clear()
        if self._runtime is None:
            self._runtime = self._made(lambda: self.trt.Runtime(self._logger), "no runtime")
        return self._made(lambda: self._runtime.deserialize_cuda_engine(plan), "it cannot be loaded")


def _typed(trt: Any) -> int:
    """The flags by which types are the graph's: all that version 11 knows, to be asked for in 10."""
    flags = trt.NetworkDefinitionCreationFlag
    return 1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "STRONGLY_TYPED") else 0


def _keep_timings(config: Any, cache: Path) -> None:
    from txl_export.files import write_atomic

    write_atomic(cache, bytes(config.get_timing_cache().serialize()))


def _let_decompose(trt: Any, network: Any) -> None:
    """Let attention be computed by several kernels where there is none for its types and shapes, as for fp32."""
    for layer in (network.get_layer(i) for i in range(network.num_layers)):
        if layer.type.name == "ATTENTION_OUTPUT":
            layer.__class__ = trt.IAttentionOutputLayer  # the way that the bindings cast
            layer.attention.decomposable = True


def _describe(trt: Any, network: Any) -> dict[str, Any]:
    """See `txl_export.building.network.Network`."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    products = Counter(_type(layer.get_output_type(0)) for layer in layers if layer.type.name in _PRODUCTS)
    updates = [layer for layer in layers if layer.type.name == "KV_CACHE_UPDATE"]
    return {
        "inputs": [_tensor(network.get_input(i)) for i in range(network.num_inputs)],
        "outputs": [_tensor(network.get_output(i)) for i in range(network.num_outputs)],
        "aliases": {layer.get_output(0).name: layer.get_input(0).name for layer in updates},
        "products": dict(products),
        "weight_bytes": sum(_nbytes(trt, layer) for layer in layers if layer.type.name == "CONSTANT"),
    }


def _tensor(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": _type(tensor.dtype), "shape": [*tensor.shape]}


def _type(dtype: Any) -> str:
    return _TYPES.get(dtype.name, dtype.name.lower())


def _nbytes(trt: Any, layer: Any) -> int:
    layer.__class__ = trt.IConstantLayer  # the way that the bindings cast
    return int(layer.weights.nbytes)


def describe_engine(engine: Any) -> dict[str, Any]:
    """As `_describe`, of what an engine tells of itself: no products, no weights."""
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    found: dict[str, list[dict[str, Any]]] = {"INPUT": [], "OUTPUT": []}
    for name in names:
        shape = [*engine.get_tensor_shape(name)]
        tensor = {"name": name, "dtype": _type(engine.get_tensor_dtype(name)), "shape": shape}
        found[engine.get_tensor_mode(name).name].append(tensor)
    outputs = [t["name"] for t in found["OUTPUT"]]
    aliases = {name: engine.get_aliased_input_tensor(name) for name in outputs}
    return {
        "inputs": found["INPUT"],
        "outputs": found["OUTPUT"],
        "aliases": {o: i for o, i in aliases.items() if i},
        "products": {},
        "weight_bytes": 0,
    }
