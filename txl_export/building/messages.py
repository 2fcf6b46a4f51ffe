"""What packages say, in a line that people can act on: the cause, the node and its module, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

# In what the library wraps its causes: function, kind of error, place in its own sources.
_WRAPPERS = (
    re.compile(r"^[\w:]+: Error Code \d+: [^(]*\((.*)\)\s*$", re.DOTALL),
    re.compile(r"^In \w+ at \S+:\d+ \((.*)\)\s*$", re.DOTALL),
)
_NOISE = (
    (re.compile(r"\s*In \w+ at /?\S+:\d+\)*$"), ""),
    (re.compile(r"\[?\w+\.(?:cpp|h|hpp):\d+: \w+\]\s*"), ""),
    (re.compile(r"^\w+\.(?:cpp|h|hpp):\d+:\s*"), ""),
    (re.compile(r"^Assertion failed: [^\n]*?: (?=\S)"), ""),
)
# Lines that say nothing of the cause.
_EMPTY = re.compile(r"catchCudaError|^Invalid Node - |^While parsing node|^--- |^Node name:|^\[\d+\] Invalid Node")
# Nodes of this package's graphs: the module's name, then the node's own.
_NODE = re.compile(r"\b((?:opening|layers\.\d+|heads)(?:\.[\w.@]+)?)/(\w+)")

# What a user can do about what is said.
_REMEDIES = (
    (re.compile(r"Turing|SM75", re.IGNORECASE), "leave out sm75, or export in fp16"),
    (re.compile(r"workspace", re.IGNORECASE), "give more with --workspace, or leave it out"),
    (re.compile(r"out of memory|alloc", re.IGNORECASE), "free some memory, or give less with --workspace"),
)


def cause(lines: Iterable[str]) -> str:
    """The first thing said that is a cause, without its wrapping, in one line."""
    parts = [part for line in lines for part in line.splitlines()]
    told = next((p for p in map(_clean, parts) if p and not _EMPTY.search(p)), "")
    return " ".join(told.split()) or "it does not say why"


def _clean(line: str) -> str:
    line = line.strip()
    for wrapper in _WRAPPERS:
        wrapped = wrapper.match(line)
        if wrapped:
            return _clean(wrapped[1])
    for pattern, instead in _NOISE:
        line = pattern.sub(instead, line)
    return line.strip()


def remedy(told: str) -> str | None:
    """What to do about a cause, where that is known."""
    return next((advice for pattern, advice in _REMEDIES if pattern.search(told)), None)


def explain(lines: Iterable[str], node: str = "", operator: str = "") -> str:
    """A line of what was refused, where and why.

    Args:
        lines: what the package said.
        node: the ONNX node's name where the package names it; else it is looked for in what it said.
        operator: the node's.
    """
    told = cause(lines)
    match = _NODE.search(node or told)
    name = node or (match[0] if match else "")
    if not name:
        return told
    kind = f" ({operator})" if operator else ""
    module = f" of module {match[1]}" if match else ""
    return f"node {name}{kind}{module}: {told.removeprefix(f'{name}: ')}"
