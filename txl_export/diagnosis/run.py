"""`doctor`: look at the machine and at its packages, and tell of each backend whether it works."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from txl_export._version import __version__
from txl_export.backends import BACKENDS, refusal
from txl_export.bundle import Bundle
from txl_export.diagnosis.machine import look_at_machine
from txl_export.diagnosis.needs import NEEDS, Condition, conditions
from txl_export.diagnosis.packages import PACKAGES, look_for
from txl_export.diagnosis.report import BackendState, Report
from txl_export.files import first_line

# What a reason ends with where it says what to do.
_COMMANDS = ("txl-export ", "pip ")


def doctor(bundle: str | Path | Bundle | None = None) -> Report:
    """Say what this machine has, which backends work on it, and what to do for the others.

    Packages are imported in processes of their own: one that is broken, or ends its process, is a line of the report.
    No engine is loaded.

    Args:
        bundle: tell of each backend whether it runs this one; None for any.

    Raises:
        BundleError: the bundle cannot be read.
    """
    opened = Bundle.open(bundle) if isinstance(bundle, str | Path) else bundle
    machine, found = look_at_machine(), look_for([*PACKAGES.values()])
    met = conditions(machine, found)
    states = tuple(_state(name, met, opened) for name in BACKENDS)
    return Report(__version__, machine, tuple(found.values()), states, None if opened is None else str(opened.path))


def _state(name: str, met: Mapping[str, Condition], bundle: Bundle | None) -> BackendState:
    need = NEEDS[name]
    unmet = [met[c] for c in need.conditions if met[c].problem]
    if unmet:
        install = f"pip install 'txl-export[{need.extra}]'"
        commands = tuple(dict.fromkeys(c.command or install for c in unmet))
        return BackendState(name, False, str(unmet[0].problem), commands)
    why = None if bundle is None else _refusal(name, bundle)
    if why is None:
        return BackendState(name, True, need.runs)
    reason, _, command = why.rpartition(": ")
    told = reason and command.startswith(_COMMANDS)
    return BackendState(name, False, *((reason, (command,)) if told else (why,)))


def _refusal(name: str, bundle: Bundle) -> str | None:
    """What a backend says to the bundle; its packages were imported before, elsewhere."""
    try:
        return refusal(name, bundle)
    except Exception as e:  # a mistake in one backend hides nothing about the others
        return first_line(e)
