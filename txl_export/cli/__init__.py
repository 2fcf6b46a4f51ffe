"""The command line: one thin module per verb, imported when the verb is used."""

from txl_export.cli._group import main

__all__ = ["main"]
