"""Takes from a listing of a TensorRT package what this project uses, as JSON.

    python -m tests.api.take FILE > tests/api/tensorrt-11.4.json

FILE lists the Python bindings of TensorRT, as `tensorrt-11.4.json` was made from that of the genuine 11.4.0.106: a
line with the version; a line `ENUM name [members]` for each enum; for each class a line `CLASS name`, and below it
`    member :: signature`, where the signature is the first line of the member's docstring, with line ends as ` | `,
empty for properties; and a line `FUNCS [names]` with all else that the module has.

The JSON has the version, classes (members with the names of their parameters, without `self`, those that may be left
out as "name="; null for properties and for methods of several signatures), enums (names of members) and functions.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CLASSES = (
    "Builder",
    "Dims",
    "IAttention",
    "IAttentionBoundaryLayer",
    "IAttentionOutputLayer",
    "IBuilderConfig",
    "IConstantLayer",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILayer",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProgressMonitor",
    "ITensor",
    "ITimingCache",
    "Logger",
    "OnnxParser",
    "ParserError",
    "Runtime",
    "Weights",
)
ENUMS = (
    "BuilderFlag",
    "DataType",
    "ExecutionContextAllocationStrategy",
    "LayerType",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "ProfilingVerbosity",
    "TensorIOMode",
    "TensorLocation",
)

Members = dict[str, list[str] | None]


def parameters(signature: str, name: str) -> list[str] | None:
    """Names of a signature's parameters without `self`, those that may be left out as "name=".

    None where it is no signature, or stands for several.
    """
    match = re.match(rf"{re.escape(name)}\((.*)\) -> ", signature)
    if match is None:
        return None
    names = [part.split(":")[0].split("=")[0].strip() + "=" * (" = " in part) for part in _parts(match[1])]
    return [n for n in names if n not in ("self", "")]


def _parts(inside: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, depth = [""], 0
    for sign in inside:
        depth += (sign in "[(<") - (sign in "])>")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def take(lines: Iterable[str]) -> dict[str, Any]:
    """The listing that tests read, of a file's lines."""
    version, *rest = (line.rstrip("\n") for line in lines)
    enums: dict[str, list[str]] = {}
    classes: dict[str, Members] = {}
    functions: list[str] = []
    found: Members = {}
    for line in rest:
        kind, _, told = line.partition(" ")
        if kind == "ENUM":
            name, _, members = told.partition(" ")
            enums[name] = ast.literal_eval(members)
        elif kind == "CLASS":
            classes[told] = found = {}
        elif kind == "FUNCS":
            functions = ast.literal_eval(told)
        else:
            name, _, signature = line.strip().partition(" :: ")
            found[name.removesuffix(" ::")] = parameters(signature, name)
    return {
        "version": version,
        "classes": {name: classes[name] for name in CLASSES},
        "enums": {name: enums[name] for name in ENUMS},
        "functions": functions,
    }


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as file:
        print(json.dumps(take(file), indent=1))
