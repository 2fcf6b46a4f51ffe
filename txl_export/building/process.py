"""The parent's side of the process that builds: start it, ask it, end it; its death is one line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import txl_export
from txl_export.building.messages import cause, explain, remedy
from txl_export.building.network import Network
from txl_export.building.packages import Package
from txl_export.errors import BuildError, EnvironmentMismatch, TxlError, missing_extra
from txl_export.files import disk_errors

COMMAND = (sys.executable, "-m", "txl_export.building.worker")

Progress = Callable[[str, float], None]


class BuilderProcess:
    """A package in a process of its own; a context manager that ends it."""

    def __init__(self, package: Package, warn: Callable[[str], None]) -> None:
        """Start it and import the package there.

        Args:
            package: what builds.
            warn: called with each line that the package warns with.

        Raises:
            EnvironmentMismatch: the package is not installed, or cannot be imported.
        """
        self.package, self._warn = package, warn
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=_environment(),
            start_new_session=True,  # Ctrl-C is the parent's to handle, which then ends this process
        )
        try:
            answer = self._ask({"do": "open", "module": package.module}, "being loaded")
        except BaseException:
            self.close()
            raise
        self.version: str = answer["version"]
        self.capabilities: tuple[str, ...] = tuple(answer["capabilities"])

    def __enter__(self) -> BuilderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def parse(self, graph: Path, sizes: Mapping[str, int] | None = None) -> Network:
        """Read an ONNX file, the dimensions of these names as numbers; raises BuildError where it is refused."""
        message = {"do": "parse", "graph": str(graph.resolve()), "sizes": dict(sizes or {})}
        return Network.from_dict(self._ask(message, f"reading {graph.name}"))

    def build(self, options: dict[str, Any], plan: Path, progress: Progress, what: str) -> float:
        """Build the graph that was read last into a file; returns seconds.

        Raises:
            BuildError: the package gives no plan.
            EnvironmentMismatch: the process died, or the disk is full.
        """
        message = {"do": "build", "options": options, "plan": str(plan.resolve())}
        return float(self._ask(message, f"building {what}", progress)["seconds"])

    def inspect(self, plan: Path, what: str) -> Network:
        """Load what was built, which needs a GPU; raises BuildError where it cannot be."""
        message = {"do": "inspect", "plan": str(plan.resolve())}
        return Network.from_dict(self._ask(message, f"loading the engine of {what}"))

    def close(self) -> None:
        """End the process, whatever it is doing: it has nothing to lose."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a line that was never read
                pipe.close()
        self._log.close()

    def _ask(self, message: dict[str, Any], doing: str, progress: Progress | None = None) -> dict[str, Any]:
        """Send a message and read up to its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=stdin, flush=True)
        for line in iter(stdout.readline, ""):
            if not line.endswith("\n"):
                break
            event: dict[str, Any] = json.loads(line)
            kind = event.pop("event")
            if kind == "done":
                return event
            if kind == "progress" and progress:
                progress(event["phase"], event["share"])
            elif kind == "warning":
                self._warn(cause([event["message"]]))
            elif kind in _FAILURES:
                raise _FAILURES[kind](self.package, doing, event)
        raise self._death(doing)

    def _death(self, doing: str) -> EnvironmentMismatch:
        code = self._process.wait()
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
            how += ", as when memory runs out" if -code == signal.SIGKILL else ""
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1].strip()}" if said else ""
        return EnvironmentMismatch(f"{self.package.name} ended with {how} while {doing}{last}")


def _absent(package: Package, doing: str, event: dict[str, Any]) -> TxlError:
    del doing, event
    return missing_extra(package.module, package.extra, f"backend '{package.name}'")


def _broken(package: Package, doing: str, event: dict[str, Any]) -> TxlError:
    del doing
    return EnvironmentMismatch(
        f"the package '{package.module}' is installed but cannot be imported ({event['message']}): "
        f"pip install --force-reinstall 'txl-export[{package.extra}]', and check the NVIDIA driver"
    )


def _refused(package: Package, doing: str, event: dict[str, Any]) -> TxlError:
    told = explain(event["lines"], event["node"], event["operator"])
    advice = remedy(told)
    return BuildError(f"{package.name} fails while {doing}: {told.rstrip('.')}" + (f": {advice}" if advice else ""))


def _disk(package: Package, doing: str, event: dict[str, Any]) -> TxlError:
    del package, doing
    path = Path(event["file"])
    try:
        with disk_errors(path):
            raise OSError(event["errno"], os.strerror(event["errno"] or 0), event["file"])
    except TxlError as e:
        return e
    except OSError as e:
        return EnvironmentMismatch(f"{path} cannot be used ({e.strerror})")


def _failed(package: Package, doing: str, event: dict[str, Any]) -> TxlError:
    del package, doing
    return EnvironmentMismatch(event["message"])


_FAILURES: dict[str, Callable[[Package, str, dict[str, Any]], TxlError]] = {
    "absent": _absent,
    "broken": _broken,
    "refused": _refused,
    "disk": _disk,
    "failed": _failed,
}


def _environment() -> dict[str, str]:
    """The parent's, with this very package."""
    package = str(Path(txl_export.__file__).resolve().parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    # SAFEPATH: modules of the user's present folder must not take the place of installed ones.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
