"""What the library calls while it works: a logger and a progress monitor, made of the classes that a package has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The parser says this of every 64-bit input and output, which is what the graph contract asks for.
_EXPECTED = ("has Int64 binding",)


def logger(trt: Any, errors: list[str], warn: Callable[[str], None]) -> Any:
    """Sorts what the library says.

    Args:
        trt: the package.
        errors: takes its errors.
        warn: called with each warning, but for those that say what the graph contract asks for.
    """
    severity = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, level: Any, message: str) -> None:
            if level in (severity.INTERNAL_ERROR, severity.ERROR):
                errors.append(message)
            elif level == severity.WARNING and not any(words in message for words in _EXPECTED):
                warn(message)

    return Logger()


def monitor(trt: Any, progress: Callable[[str, float], bool]) -> Any:
    """Follows a build.

    Phases lie in phases: a step of the outer one is as wide as all steps of the inner one.

    Args:
        trt: the package.
        progress: called with the present phase and the share of the build that is done; False ends the build.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._phases: dict[str, list[int]] = {}  # steps in all, steps done

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            del parent_phase
            self._phases[phase_name] = [max(1, num_steps), 0]

        def phase_finish(self, phase_name: str) -> None:
            self._phases.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self._phases:
                self._phases[phase_name][1] = step + 1
            return progress(phase_name, self._share())

        def _share(self) -> float:
            share, width = 0.0, 1.0
            for steps, done in self._phases.values():
                share += width * done / steps
                width /= steps
            return min(1.0, share)

    return Monitor()
