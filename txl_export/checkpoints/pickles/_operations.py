"""The operations of a pickle that plain data needs, one line or function each, in `OPERATIONS` by their code."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txl_export.checkpoints.pickles._names import Name
from txl_export.checkpoints.pickles._plain import Plain
from txl_export.errors import CheckpointError

if TYPE_CHECKING:
    from txl_export.checkpoints.pickles._machine import Machine

Operation = Callable[["Machine"], None]
OPERATIONS: dict[int, Operation] = {}


def _operation(codes: bytes) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        for code in codes:
            OPERATIONS[code] = function
        return function

    return register


def _constant(code: bytes, make: Callable[[], Any]) -> None:
    OPERATIONS[code[0]] = lambda m: m.stack.append(make())


def _sized(code: bytes, width: int, convert: Callable[[bytes], Any]) -> None:
    """An operation that pushes what `convert` makes of as many bytes as its first `width` bytes say."""
    OPERATIONS[code[0]] = lambda m: m.stack.append(m.text(m.number(width), convert))


def _fixed(code: bytes, layout: str) -> None:
    count = struct.calcsize(layout)
    OPERATIONS[code[0]] = lambda m: m.stack.append(struct.unpack(layout, m.take(count))[0])


_constant(b"N", lambda: None)
_constant(b"\x88", lambda: True)
_constant(b"\x89", lambda: False)
_constant(b")", tuple)
_constant(b"]", list)
_constant(b"}", dict)
_constant(b"\x8f", list)  # a set
_fixed(b"J", "<i")
_fixed(b"K", "<B")
_fixed(b"M", "<H")
_fixed(b"G", ">d")
_sized(b"X", 4, bytes.decode)
_sized(b"\x8c", 1, bytes.decode)
_sized(b"\x8d", 8, bytes.decode)
_sized(b"B", 4, bytes)
_sized(b"\x8e", 8, bytes)
_sized(b"C", 1, bytes)


def _python_2_text(data: bytes) -> str | bytes:
    """What Python 2 calls a string: text where it can be, else bytes, such as the numbers of an array."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


_sized(b"U", 1, _python_2_text)
_sized(b"T", 4, _python_2_text)


def _number(data: bytes) -> int | str:
    """A number of up to 64 bits; a wider one as text, as of wider ones any amount could be made to share a hash."""
    return int.from_bytes(data, "little", signed=True) if len(data) <= 8 else data.hex()


_sized(b"\x8a", 1, _number)


@_operation(b"\x80")
def _protocol(m: Machine) -> None:
    version = m.number(1)
    if not 2 <= version <= 5:
        raise CheckpointError(f"{m.source} is a pickle of protocol {version}, expected 2 to 5: save it again")


@_operation(b"\x95")
def _frame(m: Machine) -> None:
    m.take(8)


@_operation(b"(")
def _mark(m: Machine) -> None:
    m.marks.append(len(m.stack))


@_operation(b"t")
def _tuple(m: Machine) -> None:
    m.stack.append(tuple(m.marked()))


@_operation(b"\x85")
def _tuple_1(m: Machine) -> None:
    m.stack[-1] = (m.stack[-1],)


@_operation(b"\x86")
def _tuple_2(m: Machine) -> None:
    last = m.stack.pop()
    m.stack[-1] = (m.stack[-1], last)


@_operation(b"\x87")
def _tuple_3(m: Machine) -> None:
    last, middle = m.stack.pop(), m.stack.pop()
    m.stack[-1] = (m.stack[-1], middle, last)


@_operation(b"a")
def _append(m: Machine) -> None:
    item = m.stack.pop()
    _listed(m).append(item)


@_operation(b"e\x90")
def _extend(m: Machine) -> None:
    items = m.marked()
    _listed(m).extend(items)


@_operation(b"\x91")
def _frozen_set(m: Machine) -> None:
    m.stack.append(m.marked())


def _listed(m: Machine) -> list[Any]:
    target = m.stack[-1]
    if not isinstance(target, list):
        raise TypeError("items are added to something that is no list")
    return target


@_operation(b"s")
def _set_item(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _filled(m)[_key(key)] = value


@_operation(b"u")
def _set_items(m: Machine) -> None:
    items = m.marked()
    target = _filled(m)
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _filled(m: Machine) -> dict[Any, Any]:
    target = m.stack[-1]
    if not isinstance(target, dict):
        raise TypeError("items are set in something that is no dict")
    return target


def _key(key: Any) -> Any:
    """A key; a tuple could be so deep that hashing it ends the process, or so long that it takes for ever."""
    if isinstance(key, str | bytes | int):
        return key
    if isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key):
        return key  # what BPE merges
    if key is None or isinstance(key, float):
        return str(key)
    raise TypeError("a dict's key is no text, no pair of texts and no number")


OPERATIONS[ord("q")] = lambda m: m.memo.__setitem__(m.number(1), m.stack[-1])
OPERATIONS[ord("r")] = lambda m: m.memo.__setitem__(m.number(4), m.stack[-1])
OPERATIONS[0x94] = lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1])
OPERATIONS[ord("h")] = lambda m: m.stack.append(m.memo[m.number(1)])
OPERATIONS[ord("j")] = lambda m: m.stack.append(m.memo[m.number(4)])


@_operation(b"c")
def _global(m: Machine) -> None:
    module = m.line()
    m.stack.append(m.name(module, m.line()))


@_operation(b"\x93")
def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise TypeError("a name is no text")
    m.stack.append(m.name(module, name))


@_operation(b"R\x81")
def _make(m: Machine) -> None:
    args, name = m.stack.pop(), m.stack.pop()
    if not (isinstance(name, Name) and isinstance(args, tuple)):
        raise TypeError("something is called that is no name")
    m.stack.append(name.make(args))


@_operation(b"b")
def _build(m: Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if isinstance(target, Name) or not isinstance(target, Plain | dict):
        raise TypeError("attributes are given to something that has none")
    if isinstance(target, Plain):
        if target.state is not None:
            raise TypeError("attributes are given twice")
        # numpy's types and numbers have tuples here, and nobody asks for them.
        target.state = state if isinstance(state, dict) else {}


@_operation(b"Q")
def _persistent(m: Machine) -> None:
    if m.persistent is None:
        raise CheckpointError(f"{m.source} is a part of another file: give the file that torch.save wrote")
    m.stack.append(m.persistent(m.stack.pop()))
