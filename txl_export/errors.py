"""Errors a user may see: one line each, with what was found, what was expected and what to do.

Every error carries the exit code that the command line ends with: 1 a check failed, 2 usage (bad input,
bad file), 3 environment (a missing package, a full disk, the wrong version).
"""

from __future__ import annotations


class TxlError(Exception):
    """Base of all errors raised on purpose by this package."""

    exit_code = 2

    def __init__(self, message: str = "", short: str | None = None) -> None:
        """Take the message, and the same in a few words for where several reasons share a line."""
        super().__init__(message)
        self._short = short

    def __str__(self) -> str:
        """The message in one line, even where it quotes a name that holds line breaks."""
        return " ".join(super().__str__().splitlines())

    @property
    def short(self) -> str:
        """What was found and what to do, in a few words and in one line; the message where there are no fewer."""
        return str(self) if self._short is None else " ".join(self._short.splitlines())


class ConfigError(TxlError):
    """A model configuration or dialect contradicts itself or names something unknown."""


class CheckpointError(TxlError):
    """A checkpoint is missing tensors, has extra or misshaped ones, or cannot be read."""


class BundleError(TxlError):
    """A bundle is missing files, was edited or truncated, or was written by a newer version."""


class ExportError(TxlError):
    """A checkpoint cannot be exported the way it was asked for."""


class BuildError(TxlError):
    """TensorRT refuses a graph, or gave something else than was asked for; nothing of it is kept."""


class InputError(TxlError):
    """Tokens, targets, stream numbers or lengths that a session or a check cannot take."""


class ToleranceError(TxlError):
    """A comparison with the reference ended out of tolerance."""

    exit_code = 1


class EnvironmentMismatch(TxlError):
    """This machine lacks something: a package, disk space, a device, a version."""

    exit_code = 3


class DeviceError(EnvironmentMismatch):
    """A GPU has no room for what was asked, or refused a call."""


def missing_extra(package: str, extra: str, purpose: str) -> EnvironmentMismatch:
    """The error for an optional package that is not installed, naming the extra that brings it."""
    install = f"pip install 'txl-export[{extra}]'"
    return EnvironmentMismatch(
        f"{purpose} needs the package '{package}', which is not installed: {install}",
        f"package '{package}' is not installed: {install}",
    )
