"""Listings of a TensorRT package: the committed one of the genuine 11.4, and one taken from an installed package."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.api.tables import MODULE, SEVERITY
from tests.api.take import CLASSES, ENUMS, Members, parameters
from tests.api.uses import Use

# What every enum has, as pybind11 makes them.
_OF_ENUMS = ("name", "value", "__members__")
# Enums that TensorRT-RTX alone has.
OF_RTX = ("ComputeCapability",)
_BASES = {
    "IAttentionOutputLayer": "IAttentionBoundaryLayer",
    "IAttentionBoundaryLayer": "ILayer",
    "IConstantLayer": "ILayer",
}


@dataclass(frozen=True)
class Listing:
    """What a package has: see `tests.api.take`."""

    version: str
    classes: dict[str, Members]
    enums: dict[str, list[str]]
    functions: list[str]

    def problem(self, use: Use) -> str | None:
        """What is wrong with a use of a name; None where the package has it so."""
        if use.owner == MODULE:
            known = use.member in (*self.classes, *self.enums, *self.functions, "__version__")
            return None if known else f"{use}: {self.version} has no {use.member}"
        if use.owner in self.enums:
            known = use.member in (*self.enums[use.owner], *_OF_ENUMS)
            return None if known else f"{use}: {use.owner} of {self.version} has no {use.member}"
        if use.owner not in self.classes:
            return f"{use}: {self.version} has no class {use.owner}"
        members = self.members(use.owner)
        if use.member not in members:
            return f"{use}: {use.owner} of {self.version} has no {use.member}"
        return _arguments_problem(use, members[use.member])

    def lost(self, strays: Iterable[tuple[str, str]], own: Container[str]) -> list[str]:
        """Names that only the package's objects have, behind something else: an object that was not followed."""
        names = {m for members in self.classes.values() for m in members if "_" in m.strip("_")}
        return [f"{where}: what has {name}?" for where, name in strays if name in names and name not in own]

    def members(self, name: str) -> Members:
        """Of a class and those that it is derived from."""
        own = self.classes.get(name, {})
        return {**self.members(_BASES[name]), **own} if name in _BASES else own


def _arguments_problem(use: Use, parameters: list[str] | None) -> str | None:
    if parameters is None or use.positional is None:
        return None
    left = parameters[use.positional :]
    missing = {p for p in left if not p.endswith("=")} - set(use.keywords)
    odd = set(use.keywords) - {p.removesuffix("=") for p in left}
    if use.positional > len(parameters) or missing or odd:
        return f"{use}: called with {use.positional} arguments and {list(use.keywords)}, it takes {parameters}"
    return None


def committed() -> Listing:
    """That of the genuine 11.4."""
    read = json.loads((Path(__file__).parent / "tensorrt-11.4.json").read_text())
    return _with_severity(Listing(**read))


def installed(module: Any) -> Listing:
    """Of a package that can be imported, from its docstrings."""
    classes = {name: _members(getattr(module, name)) for name in CLASSES if hasattr(module, name)}
    enums = {name: list(getattr(module, name).__members__) for name in (*ENUMS, *OF_RTX) if hasattr(module, name)}
    return _with_severity(Listing(module.__version__, classes, enums, [n for n in dir(module) if n not in classes]))


def _with_severity(listing: Listing) -> Listing:
    """The enum that a class holds, whose members it has too."""
    severities = [name for name in listing.classes["ILogger"] if name.isupper()]
    return Listing(listing.version, listing.classes, {**listing.enums, SEVERITY: severities}, listing.functions)


def _members(cls: type) -> Members:
    names = [n for n in dir(cls) if not n.startswith("_") or n == "__init__"]
    return {name: parameters(_first_line(getattr(cls, name)), name) for name in names}


def _first_line(member: Any) -> str:
    return (getattr(member, "__doc__", None) or "").strip().partition("\n")[0]


def overloads(cls: type, name: str) -> list[list[str] | None]:
    """Parameters of each signature of a method that has several, from the docstring of an installed package."""
    lines = (getattr(cls, name).__doc__ or "").splitlines()
    return [parameters(line.partition(". ")[2], name) for line in lines if re.match(r"\s*\d+\. ", line)]
