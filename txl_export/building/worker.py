"""The process that the native library runs in: asked over stdin, answering over stdout, a line of JSON each.

A message names what to do; any number of events come before the answer, which ends it:

    {"do": "open", "module": name}                    ->  {"version": text, "capabilities": ["sm80", ...]}
    {"do": "parse", "graph": path, "sizes": {...}}    ->  a `Network` as a dict
    {"do": "build", "options": {...}, "plan": path}   ->  {"bytes": bytes, "seconds": seconds}
    {"do": "inspect", "plan": path}                   ->  a `Network` as a dict

Events are {"event": "progress", "phase": words, "share": 0 to 1} and {"event": "warning", "message": line},
answers {"event": "done", ...}, or {"event": kind, ...} for what went wrong: "absent" and "broken" (the package),
"refused" (a graph) and "disk". The process ends at the end of its input, and between steps of a build when
nobody reads what it says.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from txl_export.building.native import Native, RefusedError
from txl_export.errors import TxlError
from txl_export.files import first_line

_SECONDS_BETWEEN = 0.1  # of progress: a build has thousands of steps


class Server:
    """One package in one process."""

    def __init__(self, answers: TextIO) -> None:
        """Take where answers go."""
        self._answers = answers
        self._native: Native | None = None
        self._told = 0.0

    def answer(self, message: dict[str, Any]) -> None:
        """Do what a message says."""
        do = message.pop("do")
        try:
            self._say("done", **_VERBS[do](self, **message))
        except RefusedError as e:
            self._say("refused", lines=e.lines, node=e.node, operator=e.operator)
        except OSError as e:
            self._say("disk", errno=e.errno, file=str(e.filename))
        except TxlError as e:
            self._say("failed", message=str(e))

    def open(self, module: str) -> dict[str, Any]:
        """Import the package."""
        try:
            trt = importlib.import_module(module)
            self._native = Native(trt, lambda line: self._say("warning", message=line), self._progress)
            return {"version": str(trt.__version__), "capabilities": self._native.capabilities}
        except Exception as e:  # libraries that are not there end in any of them
            absent = isinstance(e, ModuleNotFoundError) and e.name == module
            self._say("absent" if absent else "broken", message=first_line(e))
            sys.exit(0)

    def parse(self, graph: str, sizes: dict[str, int]) -> dict[str, Any]:
        """Read a graph."""
        return self._package.parse(Path(graph), sizes)

    def build(self, options: dict[str, Any], plan: str) -> dict[str, Any]:
        """Build it."""
        return self._package.build(options, Path(plan))

    def inspect(self, plan: str) -> dict[str, Any]:
        """Load what was built."""
        return self._package.inspect(Path(plan).read_bytes())

    @property
    def _package(self) -> Native:
        assert self._native is not None
        return self._native

    def _progress(self, phase: str, share: float) -> bool:
        now = time.monotonic()
        if now - self._told < _SECONDS_BETWEEN:
            return True
        self._told = now
        try:
            self._say("progress", phase=phase, share=share)
        except OSError:  # nobody reads any more
            return False
        return True

    def _say(self, event: str, **values: Any) -> None:
        self._answers.write(json.dumps({"event": event, **values}) + "\n")
        self._answers.flush()


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "open": Server.open,
    "parse": Server.parse,
    "build": Server.build,
    "inspect": Server.inspect,
}


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the library prints must not stand among the answers
    server = Server(answers)
    for line in iter(sys.stdin.readline, ""):
        server.answer(json.loads(line))


if __name__ == "__main__":
    main()
