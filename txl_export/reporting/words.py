"""Names and numbers as pictures and pages show them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from txl_export.units import si

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]+")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def clean(text: object) -> str:
    """Text of a user in one line that any file can hold: no control characters, no halves of characters."""
    whole = str(text).encode("utf-8", "replace").decode("utf-8")
    return _UNPRINTABLE.sub(" ", whole).strip() or "(unnamed)"


def shorten(name: str, most: int) -> str:
    """A name cut in its middle to `most` characters; paths differ at their ends, so more of the end is kept."""
    if len(name) <= most:
        return name
    start = (most - 1) // 3
    return f"{name[:start]}…{name[len(name) - (most - 1 - start) :]}"


def short_names(names: Iterable[str], most: int) -> dict[str, str]:
    """A name of at most `most` characters for each, no two alike."""
    short: dict[str, str] = {}
    for name in dict.fromkeys(names):
        text, n = shorten(clean(name), most), 1
        while text in short.values():
            n += 1
            text = f"{shorten(clean(name), most - 2 - len(str(n)))} #{n}"
        short[name] = text
    return short


def short_paths(paths: Iterable[str], most: int) -> dict[str, str]:
    """The same for paths; folders that all of them share are left out."""
    whole = list(dict.fromkeys(paths))
    bare = [clean(p).rstrip("/") or "/" for p in whole]
    folders = zip(*(b.split("/")[:-1] for b in bare), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, folders))
    ends = {p: "/".join(b.split("/")[shared:]) or b for p, b in zip(whole, bare, strict=True)}
    if len(set(ends.values())) < len(whole):  # "a" and "a/" are two targets
        ends = {p: p for p in whole}
    short = short_names(ends.values(), most)
    return {p: short[ends[p]] for p in whole}


def ms(t: float) -> str:
    """Milliseconds in three digits or so, without the unit."""
    return f"{t:.3f}" if t < 1 else f"{t:.2f}" if t < 100 else f"{t:,.0f}"


def error(value: float) -> str:
    """A difference: 2.1e-06 -> "2.1 × 10⁻⁶"."""
    if value == 0:
        return "0"
    if value != value or value in (float("inf"), float("-inf")):
        return "not finite"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits} × {ten(int(power))}".replace("-", "−")


def ten(power: int) -> str:
    """A power of ten: -6 -> "10⁻⁶"."""
    return "10" + str(power).translate(_SUPERSCRIPTS)


def times(ratio: float) -> str:
    """How many times: "4.2", "31"."""
    return f"{ratio:.2f}" if ratio < 3 else f"{ratio:.1f}" if ratio < 20 else f"{ratio:.0f}"


# What a line must not break between: a symbol and its value, a number and its power or unit.
_TOGETHER = re.compile(r"(?<=\b[MLB]) = (?=\d)|(?<=\d) × (?=10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])|(?<=\d) (?=(?:ms|nats|[kMGT]?B)\b)")


def tight(text: str) -> str:
    """Text whose symbols, numbers and units stay together at the end of a line."""
    return _TOGETHER.sub(lambda m: m[0].replace(" ", "\u00a0"), text)


def listed(items: Sequence[str]) -> str:
    """a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def size(n: float) -> str:
    """Bytes with a decimal prefix."""
    return si(n, "B")


def streams(n: int) -> str:
    """How many streams."""
    return "1 stream" if n == 1 else f"{n} streams"
