"""Numbers as people read them."""

from __future__ import annotations

import re


def si(value: float, unit: str = "") -> str:
    """A number in three digits with a decimal prefix: 1234567 -> "1.23 M"."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            break
        value /= 1000
    digits = f"{value:#.3g}".rstrip(".") if prefix else f"{value:g}"
    return f"{digits} {prefix}{unit}".rstrip()


def parse_bytes(text: str) -> int:
    """A size in bytes: "512MiB", "2 GiB", "1.5GB" or "1048576"; raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b)?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is no size")
    power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
