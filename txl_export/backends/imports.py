"""Packages that backends need, imported when they are: an absent or broken one is one line with its remedy."""

from __future__ import annotations

import importlib
from typing import Any

from txl_export.errors import EnvironmentMismatch, missing_extra
from txl_export.files import first_line


def imported(module: str, extra: str, purpose: str, advice: str = "") -> Any:
    """Import a module.

    Args:
        module: its name.
        extra: the extra of this package that brings it.
        purpose: what needs it, for the message.
        advice: what else to look at where it is installed but broken.

    Raises:
        EnvironmentMismatch: it is not installed, or something that it needs is not there.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name == module:
            raise missing_extra(module, extra, purpose) from None
        raise _broken(module, extra, e, advice) from None
    except Exception as e:  # libraries or the driver are not there, or a package of another version
        raise _broken(module, extra, e, advice) from None


def _broken(module: str, extra: str, e: Exception, advice: str) -> EnvironmentMismatch:
    found = f"is installed but cannot be imported ({first_line(e)})"
    remedy = f"pip install --force-reinstall 'txl-export[{extra}]'"
    also = f", and {advice}" if advice else ""
    return EnvironmentMismatch(
        f"the package '{module}' {found}: {remedy}{also}", f"package '{module}' {found}: {remedy}"
    )
