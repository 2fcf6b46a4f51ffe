"""Plans of the stand-in: files that say which graph an engine runs, and for which shapes, package and GPU."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

MAGIC = b"stand-in plan\n"
VERSIONS = {"tensorrt": "11.4.0.106", "tensorrt-rtx": "1.7.1.116"}

Shape = Sequence[int]
Dim = int | str


@dataclass(frozen=True)
class Plan:
    """What an engine is made of.

    Attributes:
        graph: absolute path of the ONNX file.
        package: of `VERSIONS`.
        version: of the package.
        gpu: name and compute capability of the GPU that it was built on; None where it runs on any.
        sizes: symbolic dimensions that the engine has as numbers.
        profiles: least, optimised and largest shape by input.
        aliases: outputs that are the memory of an input: output -> input.
    """

    graph: str
    package: str
    version: str
    gpu: tuple[str, str] | None
    sizes: Mapping[str, int]
    profiles: Mapping[str, Sequence[Shape]]
    aliases: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """As in a file."""
        told = json.dumps(asdict(self)).encode()
        return MAGIC + hashlib.sha256(told).digest() + told

    @classmethod
    def from_bytes(cls, plan: bytes) -> Plan | None:
        """Read a file; None for anything else and for a damaged one."""
        digest, told = plan[len(MAGIC) :][:32], plan[len(MAGIC) + 32 :]
        if not plan.startswith(MAGIC) or hashlib.sha256(told).digest() != digest:
            return None
        read = json.loads(told)
        return cls(**read | {"gpu": tuple(read["gpu"]) if read["gpu"] else None})


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph; `dtype` is numpy's name, symbolic dimensions are names."""

    name: str
    is_input: bool
    dtype: str
    dims: tuple[Dim, ...]

    def sized(self, sizes: Mapping[str, int]) -> tuple[Dim, ...]:
        """The shape, with numbers for the dimensions that have them."""
        return tuple(sizes.get(d, d) if isinstance(d, str) else d for d in self.dims)


def tensors_of(graph: Path) -> tuple[Tensor, ...]:
    """Inputs and outputs of an ONNX file."""
    return _read(graph, graph.stat().st_mtime_ns)


@functools.lru_cache(64)
def _read(file: Path, changed: int) -> tuple[Tensor, ...]:
    graph = onnx.load(str(file), load_external_data=False).graph
    constants = {i.name for i in graph.initializer}
    inputs = [v for v in graph.input if v.name not in constants]
    return (*_tensors(inputs, True), *_tensors(graph.output, False))


def _tensors(values: Sequence[onnx.ValueInfoProto], is_input: bool) -> Iterator[Tensor]:
    for value in values:
        kind = value.type.tensor_type
        dims = tuple(d.dim_param or d.dim_value for d in kind.shape.dim)
        yield Tensor(value.name, is_input, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name, dims)
