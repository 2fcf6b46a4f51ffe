"""What `inspect` finds out, as JSON-ready dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from txl_export.building.report import described
from txl_export.bundle import Bundle, Manifest
from txl_export.checkpoints import detect_origin
from txl_export.checkpoints.tensorflow import names_files
from txl_export.cli._options import HEAD, LAYOUT, PRECISION, Reading, is_bundle
from txl_export.config import Dialect, ModelConfig, apply_overrides
from txl_export.cost import COSTED_LAYOUTS, body_parameters, export_bytes, token_cost
from txl_export.errors import ConfigError, InputError
from txl_export.layouts import layout_of
from txl_export.named_configs import published
from txl_export.weights import count_parameters


def describe(target: str, reading: Reading, mem_lens: Iterable[int]) -> dict[str, Any]:
    """Everything `inspect` says of a checkpoint, a bundle or the name of a configuration.

    Args:
        target: a path, or a name that `named_config` knows; a path that exists goes first.
        reading: how to read a checkpoint.
        mem_lens: memory lengths to give costs at, besides the stored one.

    Raises:
        InputError: nothing is there; other errors are those of loading.
    """
    lengths = tuple(mem_lens)
    if any(M < 0 for M in lengths):
        raise InputError(f"mem_lens hold {min(lengths)}, expected 0 or more tokens")
    path = Path(target)
    if is_bundle(path):
        bundle = reading.open(path)
        assert isinstance(bundle, Bundle)
        asked = reading.overrides.get("mem_len")
        return _bundle(bundle, lengths if asked is None else (*lengths, asked))
    if path.exists() or names_files(path):
        return _checkpoint(path, reading, lengths)
    return _named(target, reading, lengths)


def _checkpoint(path: Path, reading: Reading, mem_lens: tuple[int, ...]) -> dict[str, Any]:
    origin, reason = (reading.origin, "given by --origin") if reading.origin else detect_origin(path)
    checkpoint = reading.load(path)
    return {
        "kind": "checkpoint",
        "path": str(path),
        "origin": origin,
        "reason": reason,
        "notes": list(checkpoint.notes),
        "vocabulary": checkpoint.vocab.kind if checkpoint.vocab else None,
        "overrides": dict(checkpoint.overrides),
        "adapters": [a.to_dict() for a in checkpoint.adapters],
        **_model(checkpoint.config, checkpoint.dialect, {*mem_lens, checkpoint.config.mem_len}),
        "export": planned_export(checkpoint.config, checkpoint.dialect),
    }


def _named(name: str, reading: Reading, mem_lens: tuple[int, ...]) -> dict[str, Any]:
    try:
        found = published(name)
    except ConfigError as e:
        raise InputError(f"{name} is no file or folder, and {e}") from None
    if reading.origin:
        raise InputError(f"{name} is a configuration of {found.origin}: leave out --origin")
    if reading.adapters:
        raise InputError(f"{name} is a configuration, which has no weights: leave out --adapter")
    config, dialect = apply_overrides(found.config, found.dialect, reading.overrides)
    return {
        "kind": "configuration",
        "name": name,
        "origin": found.origin,
        "reason": f"figures of {found.source}",
        "overrides": reading.overrides,
        **_model(config, dialect, {*mem_lens, config.mem_len}),
        "export": planned_export(config, dialect),
    }


def _bundle(bundle: Bundle, mem_lens: tuple[int, ...]) -> dict[str, Any]:
    m = bundle.manifest
    value = m.to_dict()
    judge = bundle.judge_path
    graphs = {g.file: g for g in m.graphs}
    return {
        "kind": "bundle",
        "path": str(bundle.path),
        **{k: value[k] for k in ("schema", "layout", "precision", "policy", "mem_len", "segment_len", "max_batch")},
        "vocabulary": bundle.vocab.kind if bundle.vocab else None,
        "graphs": [{k: g[k] for k in ("file", "segment", "head")} for g in value["graphs"]],
        "states": value["states"],
        "ring": _ring(m),
        "engines": [described(e, graphs[e.graph], m.files[e.file]["bytes"]) for e in m.engines],
        "bytes": sum(f["bytes"] for f in m.files.values()),
        "judge": {
            "origin": m.judge.get("origin"),
            "recorded": m.judge.get("path"),
            "found": str(judge) if judge else None,
            "random": m.random.to_dict() if m.random else None,
        },
        "adapters": list(m.judge.get("adapters", ())),
        "notes": [m.random.note] if m.random else [],
        "versions": dict(m.versions),
        **_model(m.config, m.dialect, {*mem_lens, m.mem_len}, m),
    }


def _ring(m: Manifest) -> dict[str, int] | None:
    """Rows of a memory that is written in place, and what they leave to sessions; None in other layouts."""
    if not m.traits.in_place:
        return None
    return {"rows": m.rows, "ring": m.ring, "guard": m.guard, "reach": m.reach, "rewind": m.rewind}


def _model(
    config: ModelConfig, dialect: Dialect, mem_lens: Iterable[int], own: Manifest | None = None
) -> dict[str, Any]:
    """Architecture, dialect, parameters, and the costs of a token at several M; a bundle's rows in its layout."""
    return {
        "model": config.to_dict(),
        "dialect": dialect.to_dict(),
        "parameters": {
            "total": count_parameters(config),
            "without_embedding_and_softmax": body_parameters(config),
        },
        "costs": [
            {"mem_len": M, "layouts": {layout: _cost(config, M, layout, own) for layout in COSTED_LAYOUTS}}
            for M in sorted(mem_lens)
        ],
    }


def _cost(config: ModelConfig, mem_len: int, layout: str, own: Manifest | None) -> dict[str, Any]:
    rows = dataclasses.replace(own, mem_len=mem_len).rows if own and own.layout == layout else None
    cost = token_cost(config, mem_len, layout, rows)
    return {
        "memory_bytes": cost.memory_bytes,
        "flops_per_token": cost.total_flops,
        "flops_by_part": cost.flops,
        "bytes_read_per_token": cost.bytes_read,
    }


def planned_export(config: ModelConfig, dialect: Dialect) -> dict[str, Any]:
    """What `export` makes unless told otherwise; {"impossible": why} where it refuses."""
    try:
        dialect.window(config, config.mem_len)
    except ConfigError as e:
        return {"impossible": str(e)}
    traits = layout_of(LAYOUT)
    asked = traits.graphs(None, config.same_length, cover=False)
    segments = traits.graphs(None, config.same_length)
    longest = max(s.hi for s in segments)
    return {
        "mem_len": config.mem_len,
        "segment_len": longest,
        "layout": LAYOUT,
        "precision": PRECISION,
        "graphs": [{"segment": str(s), "head": HEAD, "added": s not in asked} for s in segments],
        "bytes": export_bytes(config, config.mem_len, longest, len(segments)),
    }
