"""Whether this machine has room for what is about to be made: said in one line before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from txl_export.errors import EnvironmentMismatch
from txl_export.units import si

SMALLER = "take a smaller mem_len"
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def require_room(needed: int, what: str, advice: str) -> None:
    """Raise EnvironmentMismatch for what could not be held even if nothing else ran.

    Args:
        needed: bytes.
        what: what needs them, for the message.
        advice: what to do about it.
    """
    there = machine_bytes()
    if there is not None and needed > there:
        raise EnvironmentMismatch(
            f"{what} needs {si(needed, 'B')} of main memory, this machine has {si(there, 'B')}: {advice}"
        )


def the_memory(mem_len: int, batch_size: int) -> tuple[str, str]:
    """What to call the memory of streams, and what to do where there is no room for it, as `require_room` takes them.

    Args:
        mem_len: M in tokens.
        batch_size: streams.
    """
    fewer = " or fewer streams" if batch_size > 1 else ""
    return f"the memory of {mem_len:,} tokens for {batch_size:,} stream{'s' * (batch_size > 1)}", SMALLER + fewer


def machine_bytes() -> int | None:
    """Main memory that this process may have at most; None where the system does not tell."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no sysconf, or not these names
        return None
    try:
        limit = _CGROUP_LIMIT.read_text()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.strip().isdigit() else physical
