"""Which backend runs a source when none is named: the first that can, and why not those before it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from txl_export.backends import BACKENDS, Backend, LoadedModel, backend, refusal
from txl_export.backends.base import RUNS_BUNDLES, RUNS_CHECKPOINTS
from txl_export.bundle import Bundle
from txl_export.checkpoints import Checkpoint
from txl_export.errors import EnvironmentMismatch

Load = Callable[[Backend], LoadedModel]

_LOGGER = logging.getLogger("txl_export")
_OTHER_KIND = (RUNS_BUNDLES, RUNS_CHECKPOINTS)


def load_fastest(source: Bundle | Checkpoint, load: Load) -> tuple[LoadedModel, str]:
    """Load a source on the first backend that runs it here; which it is and why not those before it, in a line.

    Args:
        source: what to run.
        load: loads it on a backend; where that raises EnvironmentMismatch the next is tried.

    Returns:
        the model, and the line, which is logged too: "onnxruntime; not tensorrt (no engines: txl-export build ...)".
        Backends that never run such a source are left out.

    Raises:
        EnvironmentMismatch: none runs it here; the message has the reason of each.
    """
    refused: dict[str, str] = {}
    for name in BACKENDS:
        why = refusal(name, source)
        if why is None:
            try:
                model = load(backend(name))
            except EnvironmentMismatch as e:
                why = e.short
            else:
                return model, _tell(name, refused, source)
        if why not in _OTHER_KIND:
            refused[name] = why
    raise EnvironmentMismatch(f"nothing here runs {source.path or 'this checkpoint'}: {_listed(refused)}")


def _tell(taken: str, refused: Mapping[str, str], source: Bundle | Checkpoint) -> str:
    """Log the choice and return it in a line; a warning where engines were built for this and none is used."""
    built = {e.package for e in source.manifest.engines} if isinstance(source, Bundle) else set()
    choice = f"{taken}; {_listed(refused)}" if refused else taken
    unused = bool(built) and taken not in built
    level = logging.WARNING if unused else logging.INFO if refused else logging.DEBUG
    _LOGGER.log(level, "%s runs on %s", source.path or "the checkpoint", choice)
    return choice


def _listed(refused: Mapping[str, str]) -> str:
    """Each reason once, behind the backends that have it."""
    names: dict[str, list[str]] = {}
    for name, why in refused.items():
        names.setdefault(why, []).append(name)
    return ", ".join(f"not {', '.join(those)} ({why})" for why, those in names.items())
