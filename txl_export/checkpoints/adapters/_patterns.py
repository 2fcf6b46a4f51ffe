"""Keys of `rank_pattern` and `alpha_pattern`: expressions out of a file, matched only where that ends soon."""

from __future__ import annotations

import functools
import re

# What is beyond these may take for ever; PEFT's users write a name or a simple expression: one group, two repetitions.
_MOST = 200
_INVOLVED = re.compile(r"\(\?|\\\d|\)[*+?{]|(\(.*){2}|([*+?{].*){3}", re.DOTALL)


def fits(pattern: str, module: str) -> bool:
    """PEFT's rule: the expression matches the end of a module's name, from the name's beginning or after a dot."""
    return _compiled(pattern).match(module) is not None


def is_simple(pattern: str) -> bool:
    """Whether it is an expression, and one that can be matched without counting on."""
    if len(pattern) > _MOST or _INVOLVED.search(pattern):
        return False
    try:
        _compiled(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


@functools.lru_cache(maxsize=4096)  # `re` keeps fewer than a large model may have
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({pattern})$")
