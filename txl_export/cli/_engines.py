"""Engines of a bundle as a table, for the verbs that build and inspect them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from txl_export.cli._output import print_table
from txl_export.units import si

COLUMNS = ("graph", "head", "tokens per call", "batch", "products in", "size", "seconds")


def print_engines(engines: Sequence[dict[str, Any]]) -> None:
    """A table for each package and target.

    Args:
        engines: as in the manifest, each with "segment", "head", "for", "bytes", and "new" where it tells.
    """
    for (package, version, gpus, label), group in itertools.groupby(engines, _together):
        listed = list(group)
        total = si(sum(e["bytes"] for e in listed), "B")
        title = f"{package} {version} for {gpus}: {total} in *.{package}.{label}.engine"
        print_table(title, COLUMNS, map(_row, listed), left=5)


def _together(engine: dict[str, Any]) -> tuple[str, str, str, str]:
    return engine["package"], engine["version"], engine["for"], engine["target"]["label"]


def _row(engine: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(engine[k] for k in ("graph", "head", "segment"))
    took = f"{engine['seconds']:.1f}" if engine.get("new", True) else "up to date"
    return *names, _batch(engine), _products(engine["products"]), si(engine["bytes"], "B"), took


def _batch(engine: dict[str, Any]) -> str:
    first = next(iter(engine["profiles"].values()))
    return ":".join(str(first[k][0]) for k in ("min", "opt", "max"))


def _products(by_type: dict[str, int]) -> str:
    """Matrix products by type: "fp16", or "fp16 (26), fp32 (2)"."""
    if len(by_type) == 1:
        return next(iter(by_type))
    return ", ".join(f"{p} ({n})" for p, n in sorted(by_type.items(), key=lambda item: -item[1])) or "none"
