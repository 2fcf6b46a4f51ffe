"""A pickle machine for plain data: it has no operation that imports, calls or looks up anything.

It knows the operations that `torch.save` and `pickle`, also Python 2's, write for data (protocols 2 to 5, without
out-of-band buffers, persistent ids as text, and extension registries). All it makes costs at most a small
constant per byte that it reads: what is made of a list or a dict shares it, never copies it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from txl_export.checkpoints.pickles._names import Name, known_name
from txl_export.checkpoints.pickles._operations import OPERATIONS
from txl_export.checkpoints.pickles._plain import Plain
from txl_export.checkpoints.pickles._text import shown
from txl_export.errors import CheckpointError

# A vocabulary of 800,000 words takes about 7 million operations, a model some thousands.
MOST_OPERATIONS = 20_000_000
# The longest single text that is kept: the source code that old files carry is far below it, the tokens of a corpus,
# which stand beside a vocabulary, are far above.
MOST_BYTES = 16 << 20
_MOST_FILE = 1 << 50


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
    machine = Machine(file, source, persistent)
    try:
        return machine.run()
    except CheckpointError as e:
        raise CheckpointError(e.args[0] if e.args[0].startswith(source) else f"{source}: {e.args[0]}") from None
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as e:
        # Operands that do not fit the operation: too few on the stack, of another type, text that is no UTF-8.
        raise CheckpointError(
            f"{source} is damaged, its pickle makes no sense ({type(e).__name__}): copy it again"
        ) from None


class Machine:
    """A pickle being read: the stack, the marks in it and the memo, and what operations take from the file."""

    def __init__(self, file: BinaryIO, source: str, persistent: Callable[[Any], Any] | None) -> None:
        self.file, self.source, self.persistent = file, source, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """What the pickle makes; raises CheckpointError, or what operands that do not fit raise."""
        read, operations = self.file.read, OPERATIONS
        for _ in range(MOST_OPERATIONS):
            code = read(1)
            if code == b".":
                return self.stack.pop()
            operation = operations.get(code[0]) if code else None
            if operation is None:
                raise CheckpointError(self._unknown(code))
            operation(self)
        raise CheckpointError(
            f"{self.source} has over {MOST_OPERATIONS:,} pickle operations, as no model: give another file"
        )

    def _unknown(self, code: bytes) -> str:
        if not code:
            return f"{self.source} is cut short, its pickle has no end: copy it again"
        return (
            f"{self.source} uses the pickle operation {code!r}, which plain data needs not, and was not run: "
            "expected a file as its origin wrote it"
        )

    def take(self, count: int) -> bytes:
        """The next bytes of the pickle."""
        data = self.file.read(count) if count <= MOST_BYTES else b""
        if len(data) != count:
            raise CheckpointError(f"{self.source} is cut short, its pickle has no end: copy it again")
        return data

    def text(self, count: int, convert: Callable[[bytes], Any]) -> Any:
        """What `convert` makes of the next bytes; something that stands for them where they are too many to keep."""
        if count <= MOST_BYTES:
            return convert(self.take(count))
        # Beyond the end of a file nothing more is read; beyond what a file may be, seeking fails.
        self.file.seek(min(count, _MOST_FILE), os.SEEK_CUR)
        return Plain(f"{count:,} bytes that were passed over")

    def number(self, count: int) -> int:
        """The next bytes as a number of 0 or more."""
        return int.from_bytes(self.take(count), "little")

    def line(self) -> str:
        """The next bytes up to a line break, as text."""
        data = self.file.readline(256)
        if not data.endswith(b"\n"):
            raise CheckpointError(f"{self.source} is damaged, a name in its pickle has no end: copy it again")
        return data[:-1].decode()

    def marked(self) -> list[Any]:
        """What lies above the last mark, taken off the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def name(self, module: str, name: str) -> Name:
        """The stand-in of a class or function; raises CheckpointError for one that has none."""
        found = known_name(module, name)
        if found is None:
            raise CheckpointError(
                f"{self.source} names {shown(f'{module}.{name}')}, which is no part of a Transformer-XL checkpoint and "
                "was not run: expected a file as its origin wrote it, tensors dense and real"
            )
        return found
