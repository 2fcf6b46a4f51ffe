"""Text of a file in a message: short, one line, nothing that a terminal would obey."""

from __future__ import annotations


def shown(value: object, most: int = 80) -> str:
    """A name or value from a file, escaped and cut."""
    text = value if isinstance(value, str) else f"a {type(value).__name__}"
    text = repr(text[:most])[1:-1].encode("ascii", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 3] + "..."
