"""What the package logs while a verb runs, as lines on stderr."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click


class _Lines(logging.Handler):
    """Prints warnings at once and keeps notes; each once. Where JSON is printed, notes are left out."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.warnings: dict[str, None] = {}
        self.notes: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        line = " ".join(record.getMessage().splitlines())
        context = click.get_current_context(silent=True)
        if record.levelno >= logging.WARNING and line not in self.warnings:
            self.warnings[line] = None
            click.echo(f"warning: {line}", err=True)
        elif record.levelno < logging.WARNING and not (context and context.params.get("as_json")):
            self.notes[line] = None


@contextlib.contextmanager
def log_on_stderr() -> Iterator[None]:
    """Print what `txl_export` logs meanwhile: warnings when they come, notes at the end, where no error ends it."""
    logger, lines = logging.getLogger("txl_export"), _Lines()
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield
        for note in lines.notes:
            click.echo(f"note: {note}", err=True)
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
