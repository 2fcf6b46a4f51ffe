"""Records that come out of files: every field must hold what its annotation says before anything computes with it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

_LARGEST = 2**63  # what sizes and counts stay below, and every float can hold


def check_record(record: Any, **names: type) -> None:
    """Check a dataclass or named tuple, and the records in it, against their annotations.

    Args:
        record: made of values that nobody checked.
        names: classes that the annotations name and their modules import for type checkers only.

    Raises:
        ValueError: a field holds another type, or an integer beyond 63 bits.
    """
    for name, kind in typing.get_type_hints(type(record), localns=names).items():
        value = getattr(record, name)
        if not _fits(value, kind, names):
            raise ValueError(f"{name} is {repr(value)[:40]}")


def _fits(value: Any, kind: Any, names: dict[str, type]) -> bool:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, k, names) for k in inner)
    if origin in _SCALARS:
        return _SCALARS[origin](value)
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[1:] == (...,) and isinstance(value, tuple) else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and _all_fit(value, kinds, names)
    if origin is Mapping or origin is dict:
        pair = inner or (Any, Any)
        return isinstance(value, Mapping) and all(_all_fit(item, pair, names) for item in value.items())
    if not isinstance(value, origin):
        return False
    if dataclasses.is_dataclass(origin) or hasattr(origin, "_fields"):
        check_record(value, **names)
    return True


def _all_fit(values: Any, kinds: Any, names: dict[str, type]) -> bool:
    return all(_fits(v, k, names) for v, k in zip(values, kinds, strict=True))


def _is_int(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and abs(x) < _LARGEST


def _is_float(x: Any) -> bool:
    return _is_int(x) or isinstance(x, float)


_SCALARS: dict[Any, Callable[[Any], bool]] = {
    Any: lambda _: True,
    type(None): lambda x: x is None,
    bool: lambda x: isinstance(x, bool),
    str: lambda x: isinstance(x, str),
    int: _is_int,
    float: _is_float,
}
