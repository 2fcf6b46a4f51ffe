"""Numbers as people read them."""

from __future__ import annotations


def si(value: float, unit: str = "") -> str:
    """A number in three digits with a decimal prefix: 1234567 -> "1.23 M"."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            break
        value /= 1000
    digits = f"{value:#.3g}".rstrip(".") if prefix else f"{value:g}"
    return f"{digits} {prefix}{unit}".rstrip()
