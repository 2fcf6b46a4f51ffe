"""What code uses of cuda-python, read from its syntax: whatever is named as CUDA names its functions and enums."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAME = re.compile(r"cuda[A-Z]\w*")


def problems(file: Path, module: Any) -> Iterator[str]:
    """What a file uses that `cuda.bindings.runtime` has not, or not so; a line each."""
    tree = ast.parse(file.read_text())
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        found = _problem(node, called.get(id(node)), module)
        if found is not None:
            yield f"{file.name}:{getattr(node, 'lineno', 0)}: {found}"


def names(file: Path) -> set[str]:
    """All that are used."""
    return {name for node in ast.walk(ast.parse(file.read_text())) if (name := _name(node)) is not None}


def _name(node: ast.AST) -> str | None:
    name = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


def _problem(node: ast.AST, call: ast.Call | None, module: Any) -> str | None:
    if isinstance(node, ast.Call):
        return _called_by_name(node, module)
    name = _name(node)
    if name is None:
        return None
    outer = _name(node.value) if isinstance(node, ast.Attribute) else None
    owner = getattr(module, outer, None) if outer is not None else module
    if not hasattr(owner, name):
        return f"{outer or module.__name__} has no {name}"
    if isinstance(node, ast.Constant) or isinstance(getattr(owner, name), type) or not callable(getattr(owner, name)):
        return None
    # One that is handed on ends a handle, which is all that it is given.
    return _arguments(name, 1 if call is None else call.args, module)


def _called_by_name(node: ast.Call, module: Any) -> str | None:
    """A function of our own that takes the name of CUDA's and its arguments."""
    name = _name(node.args[0]) if node.args else None
    if name is None or not callable(getattr(module, name, None)):
        return None
    return _arguments(name, node.args[1:], module)


def _arguments(name: str, given: list[ast.expr] | int, module: Any) -> str | None:
    if isinstance(given, list) and any(isinstance(a, ast.Starred) for a in given):
        return None
    count, taken = given if isinstance(given, int) else len(given), list(parameters(module, name))
    return None if count == len(taken) else f"{name} is given {count} arguments, it takes {taken}"


def parameters(module: Any, name: str) -> list[str]:
    """Names of a function's parameters."""
    return list(inspect.signature(getattr(module, name)).parameters)
