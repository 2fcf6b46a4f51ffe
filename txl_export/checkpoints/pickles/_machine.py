"""A pickle machine for plain data: it has no operation that imports, calls or looks up anything.

It knows the operations that `torch.save` and today's `pickle` write for data (protocols 2 to 5, without
out-of-band buffers, persistent ids as text, and extension registries). All it makes costs at most a small
constant per byte that it reads: what is made of a list or a dict shares it, never copies it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from txl_export.checkpoints.pickles._names import Name, known_name
from txl_export.checkpoints.pickles._plain import Plain
from txl_export.checkpoints.pickles._text import shown
from txl_export.errors import CheckpointError

# A vocabulary of 800,000 words takes about 7 million operations, a model some thousands.
MOST_OPERATIONS = 20_000_000
# The longest single text: the source code that old files carry is far below it.
MOST_BYTES = 16 << 20

Operation = Callable[["_Machine"], None]
_OPERATIONS: dict[int, Operation] = {}


def read_pickle(file: BinaryIO, source: str, persistent: Callable[[Any], Any] | None = None) -> Any:
    """The plain data of one pickle; the file is left behind its end.

    Sets become lists, ordered and default dicts and counters dicts, objects `Plain`, numbers wider than 64 bits text.

    Args:
        file: positioned at the pickle's first byte.
        source: what to call the file in messages.
        persistent: what a persistent id stands for; None to refuse them.

    Raises:
        CheckpointError: for names that are not known, operations that data needs not, or a damaged file.
    """
    machine = _Machine(file, source, persistent)
    try:
        return machine.run()
    except CheckpointError as e:
        raise CheckpointError(e.args[0] if e.args[0].startswith(source) else f"{source}: {e.args[0]}") from None
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as e:
        # Operands that do not fit the operation: too few on the stack, of another type, text that is no UTF-8.
        raise CheckpointError(f"{source} is damaged: its pickle makes no sense ({type(e).__name__})") from None


class _Machine:
    def __init__(self, file: BinaryIO, source: str, persistent: Callable[[Any], Any] | None) -> None:
        self.file, self.source, self.persistent = file, source, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        read, operations = self.file.read, _OPERATIONS
        for _ in range(MOST_OPERATIONS):
            code = read(1)
            if code == b".":
                return self.stack.pop()
            operation = operations.get(code[0]) if code else None
            if operation is None:
                raise CheckpointError(self._unknown(code))
            operation(self)
        raise CheckpointError(f"{self.source} has over {MOST_OPERATIONS:,} pickle operations: it is no model")

    def _unknown(self, code: bytes) -> str:
        if not code:
            return f"{self.source} is cut short: its pickle has no end"
        return f"{self.source} uses the pickle operation {code!r}, which plain data needs not, and was not run"

    def take(self, count: int) -> bytes:
        if count > MOST_BYTES:
            raise CheckpointError(f"{self.source} holds one text of {count:,} bytes: it is damaged or no model")
        data = self.file.read(count)
        if len(data) != count:
            raise CheckpointError(f"{self.source} is cut short: its pickle has no end")
        return data

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def line(self) -> str:
        data = self.file.readline(256)
        if not data.endswith(b"\n"):
            raise CheckpointError(f"{self.source} is damaged: a name in its pickle has no end")
        return data[:-1].decode()

    def marked(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def name(self, module: str, name: str) -> Name:
        found = known_name(module, name)
        if found is None:
            raise CheckpointError(
                f"{self.source} names {shown(f'{module}.{name}')}, which is no part of a Transformer-XL checkpoint and "
                "was not run: expected a file as its origin wrote it, tensors dense and real"
            )
        return found


def _operation(codes: bytes) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        for code in codes:
            _OPERATIONS[code] = function
        return function

    return register


def _constant(code: bytes, make: Callable[[], Any]) -> None:
    _OPERATIONS[code[0]] = lambda m: m.stack.append(make())


def _sized(code: bytes, width: int, convert: Callable[[bytes], Any]) -> None:
    """An operation that pushes what `convert` makes of as many bytes as its first `width` bytes say."""
    _OPERATIONS[code[0]] = lambda m: m.stack.append(convert(m.take(m.number(width))))


def _fixed(code: bytes, layout: str) -> None:
    count = struct.calcsize(layout)
    _OPERATIONS[code[0]] = lambda m: m.stack.append(struct.unpack(layout, m.take(count))[0])


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
_sized(b"B", 4, bytes)
_sized(b"C", 1, bytes)


def _number(data: bytes) -> int | str:
    """A number of up to 64 bits; a wider one as text, as of wider ones any amount could be made to share a hash."""
    return int.from_bytes(data, "little", signed=True) if len(data) <= 8 else data.hex()


_sized(b"\x8a", 1, _number)


@_operation(b"\x80")
def _protocol(m: _Machine) -> None:
    version = m.number(1)
    if not 2 <= version <= 5:
        raise CheckpointError(f"{m.source} is a pickle of protocol {version}, expected 2 to 5: save it again")


@_operation(b"\x95")
def _frame(m: _Machine) -> None:
    m.take(8)


@_operation(b"(")
def _mark(m: _Machine) -> None:
    m.marks.append(len(m.stack))


@_operation(b"t")
def _tuple(m: _Machine) -> None:
    m.stack.append(tuple(m.marked()))


@_operation(b"\x85")
def _tuple_1(m: _Machine) -> None:
    m.stack[-1] = (m.stack[-1],)


@_operation(b"\x86")
def _tuple_2(m: _Machine) -> None:
    last = m.stack.pop()
    m.stack[-1] = (m.stack[-1], last)


@_operation(b"\x87")
def _tuple_3(m: _Machine) -> None:
    last, middle = m.stack.pop(), m.stack.pop()
    m.stack[-1] = (m.stack[-1], middle, last)


@_operation(b"a")
def _append(m: _Machine) -> None:
    item = m.stack.pop()
    _listed(m).append(item)


@_operation(b"e\x90")
def _extend(m: _Machine) -> None:
    items = m.marked()
    _listed(m).extend(items)


@_operation(b"\x91")
def _frozen_set(m: _Machine) -> None:
    m.stack.append(m.marked())


def _listed(m: _Machine) -> list[Any]:
    target = m.stack[-1]
    if not isinstance(target, list):
        raise TypeError("items are added to something that is no list")
    return target


@_operation(b"s")
def _set_item(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _filled(m)[_key(key)] = value


@_operation(b"u")
def _set_items(m: _Machine) -> None:
    items = m.marked()
    target = _filled(m)
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _filled(m: _Machine) -> dict[Any, Any]:
    target = m.stack[-1]
    if not isinstance(target, dict):
        raise TypeError("items are set in something that is no dict")
    return target


def _key(key: Any) -> Any:
    """A key; a tuple could be so deep that hashing it ends the process."""
    if isinstance(key, str | bytes | int):
        return key
    if key is None or isinstance(key, float):
        return str(key)
    raise TypeError("a dict's key is no text and no number")


_OPERATIONS[ord("q")] = lambda m: m.memo.__setitem__(m.number(1), m.stack[-1])
_OPERATIONS[ord("r")] = lambda m: m.memo.__setitem__(m.number(4), m.stack[-1])
_OPERATIONS[0x94] = lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1])
_OPERATIONS[ord("h")] = lambda m: m.stack.append(m.memo[m.number(1)])
_OPERATIONS[ord("j")] = lambda m: m.stack.append(m.memo[m.number(4)])


@_operation(b"c")
def _global(m: _Machine) -> None:
    module = m.line()
    m.stack.append(m.name(module, m.line()))


@_operation(b"\x93")
def _stack_global(m: _Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise TypeError("a name is no text")
    m.stack.append(m.name(module, name))


@_operation(b"R\x81")
def _make(m: _Machine) -> None:
    args, name = m.stack.pop(), m.stack.pop()
    if not (isinstance(name, Name) and isinstance(args, tuple)):
        raise TypeError("something is called that is no name")
    m.stack.append(name.make(args))


@_operation(b"b")
def _build(m: _Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if isinstance(target, Name) or not isinstance(target, Plain | dict):
        raise TypeError("attributes are given to something that has none")
    if isinstance(target, Plain):
        if target.state is not None:
            raise TypeError("attributes are given twice")
        # numpy's types and numbers have tuples here, and nobody asks for them.
        target.state = state if isinstance(state, dict) else {}


@_operation(b"Q")
def _persistent(m: _Machine) -> None:
    if m.persistent is None:
        raise CheckpointError(f"{m.source} is a part of another file: give the file that torch.save wrote")
    m.stack.append(m.persistent(m.stack.pop()))
