"""What a bundle is, in names and values for people: out of what `inspect` finds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txl_export.benchmarking.table import Table
from txl_export.bundle import Bundle, Manifest
from txl_export.checkpoints.adapters import described
from txl_export.cli._describe import describe
from txl_export.cli._options import Reading
from txl_export.cost import compared_layouts
from txl_export.reporting.tables import Grid
from txl_export.reporting.words import clean, error, size, streams
from txl_export.units import si
from txl_export.verification.report import Report

Facts = dict[str, str]

_START = {"empty": "empty: nothing to attend to at first", "zeros": "zeros that are attended to"}
_ROWS = {"forward": "row i belongs to tail i", "reversed": "the last row belongs to the first tail"}
_VOCABULARIES = {
    "bytes": "bytes: any file is text",
    "words": "words, split at blanks",
    "text8": "letters and blanks, as in text8",
    "byte-numbers": "bytes without line breaks, as in enwik8",
}


def inspected(bundle: Bundle, mem_lens: list[int]) -> dict[str, Any]:
    """What `inspect` says of a bundle, with the costs at these memory lengths."""
    return describe(str(bundle.path), Reading(None, None, None, None), mem_lens)


def model_facts(found: Mapping[str, Any]) -> Facts:
    """Architecture, parameters and dialect."""
    m, d, p = found["model"], found["dialect"], found["parameters"]
    softmax = f"{m['vocab_size']:,} tokens"
    if m["cutoffs"]:
        softmax += f", adaptive, cutoffs {', '.join(map(str, m['cutoffs']))}, div_val {m['div_val']}"
    facts = {
        "Layers": f"{m['n_layer']}, {'pre' if m['pre_lnorm'] else 'post'}-LN",
        "Width (d_model)": str(m["d_model"]),
        "Heads": f"{m['n_head']} of {m['d_head']}",
        "Feed forward (d_inner)": str(m["d_inner"]),
        "Parameters": f"{p['total']:,} ({si(p['without_embedding_and_softmax'])} without embedding and softmax)",
        "Vocabulary": _VOCABULARIES.get(found["vocabulary"], found["vocabulary"] or "none stored: token ids only"),
        "Softmax": softmax + (", tied to the embedding" if m["tie_weight"] else ""),
        "Distances": f"shared above {m['clamp_len']} (clamp_len)" if m["clamp_len"] > 0 else "not clamped",
        "Equal lengths (same_length)": "yes" if m["same_length"] else "no",
        "A stream starts from": _START.get(d["initial_memory"], d["initial_memory"]),
        "LayerNorm epsilon": f"{d['layer_norm_eps']:g}",
    }
    if m["same_length"]:
        facts["Keys that a query sees"] = f"M + {d['window_extra']}" if d["window_extra"] else "M"
    if m["cutoffs"]:
        facts["Cluster weights"] = _ROWS.get(d["cluster_order"], d["cluster_order"])
    return {name: clean(value) for name, value in facts.items()}


def bundle_facts(bundle: Bundle, found: Mapping[str, Any]) -> Facts:
    """Memory, heads, sizes and where it comes from."""
    judge, m = found["judge"], bundle.manifest
    state = sum(s["bytes_per_stream"] for s in found["states"])
    where = judge["found"] or (f"gone; it was at {judge['recorded']}" if judge["recorded"] else "not recorded")
    facts = {
        "Folder": found["path"],
        "Size": f"{size(found['bytes'])} in {len(m.files)} files",
        "Origin": judge["origin"] or "not recorded",
        "Checkpoint": where,
        "SHA-256 of the weights": m.judge.get("sha256") or "not recorded",
        **{f"Adapter {i}": f"{a['path']}: {described(a)}" for i, a in enumerate(found["adapters"], 1)},
        "Memory holds": f"{m.traits.memory} (layout {m.layout})",
        "Memory length M": f"{m.mem_len} tokens" + (", or fewer: each session chooses" if m.traits.in_place else ""),
        **_ring_facts(m),
        "Memory of a stream": f"{size(state)} in {len(found['states'])} tensors",
        "Segment length": f"{m.segment_len} tokens, unless a feed says otherwise",
        "Precision": m.precision,
        "Heads": ", ".join(m.heads),
        "Streams per call": f"up to {m.max_batch}",
    }
    return {name: clean(value) for name, value in facts.items()}


def _ring_facts(m: Manifest) -> Facts:
    if not m.traits.in_place:
        return {}
    return {
        "Rows of memory": f"{m.ring} written round and round, and {m.guard} behind them",
        "Rewind": f"{m.rewind} tokens can be taken back at any time",
    }


def graphs_grid(found: Mapping[str, Any]) -> Grid:
    """The graphs."""
    rows = tuple((clean(g["file"]), clean(g["head"]), clean(g["segment"])) for g in found["graphs"])
    return Grid("Graphs", ("file", "returns", "tokens per call"), rows, left=2)


def files_grid(bundle: Bundle) -> Grid:
    """Sizes and hashes."""
    files = bundle.manifest.files.items()
    rows = tuple((clean(name), size(f["bytes"]), clean(f["sha256"])) for name, f in files)
    return Grid("Files", ("file", "size", "SHA-256"), rows)


def costs_grid(found: Mapping[str, Any]) -> Grid:
    """What a token costs by arithmetic, per memory length and layout."""
    kinds = [("memory per stream", "memory_bytes", "B"), ("FLOPs", "flops_per_token", "")]
    kinds.append(("bytes read", "bytes_read_per_token", "B"))
    layouts = compared_layouts(found["layout"])
    columns = ("M", *(f"{title}, {name}" for title, _, _ in kinds for name in layouts))
    rows = tuple(
        (str(row["mem_len"]), *(si(row["layouts"][name][key], unit) for _, key, unit in kinds for name in layouts))
        for row in found["costs"]
    )
    return Grid("One token of one stream with a full memory, in float32: arithmetic, not measured", columns, rows)


def machine_facts(machine: Mapping[str, Any], threads: int | None) -> Facts:
    """What ran the benchmark."""
    facts = {
        "CPU": machine.get("cpu"),
        "Cores": machine.get("cores"),
        "Logical CPUs": machine.get("logical_cpus"),
        "Threads of each candidate": threads,
        "System": machine.get("system"),
    }
    return {name: clean(value) for name, value in facts.items() if value is not None} | versions(machine)


def versions(value: Mapping[str, Any]) -> Facts:
    """Package versions of a description."""
    found = value.get("versions")
    return {clean(k): clean(v) for k, v in found.items()} if isinstance(found, Mapping) else {}


def title(path: Path) -> str:
    """The bundle's name."""
    return clean(path.resolve().name or path)


def verification_facts(report: Report) -> Facts:
    """What was compared, with what result."""
    limits, perplexities = report.limits, report.perplexities
    found = {
        "Compared": f"{len(report.segments)} segments of {report.segment_len} tokens, {streams(report.batch_size)}",
        "Tokens": report.source,
        "Judge": f"{report.checkpoint}, in eager float32",
        "Run by": f"{report.backend}, layout {report.layout}, {report.precision}, M = {report.mem_len}",
        "Head": report.head,
        "Largest error": f"{error(report.max_abs)} (tolerance {error(limits.log_probs)})"
        if limits.log_probs
        else error(report.max_abs),
        "Trend": report.trend.describe(),
    }
    agree = [s.measures.top1 for s in report.segments if s.measures.top1 is not None]
    if agree:
        found["Best token"] = f"the same at {min(agree):.1%} of positions or more (tolerance {limits.top1:.0%})"
    if perplexities and report.perplexity_difference is not None:
        judged = f"tolerance {error(limits.perplexity)}" if report.real else "not judged on random tokens"
        found["Perplexity"] = (
            f"{perplexities[0]:.6g}, the trained model's {perplexities[1]:.6g}: "
            f"{error(report.perplexity_difference)} apart, relative ({judged})"
        )
    if report.noise:
        found["The judge's own rounding"] = f"{error(report.noise.log_probs)} between float32 and float64"
    if report.bisect and report.bisect.lost:
        found["Where accuracy is lost"] = report.bisect.text
    return {name: clean(value) for name, value in found.items()}


def conditions(table: Table) -> str:
    """How calls were timed."""
    threads = f"{table.threads} thread{'s' if table.threads > 1 else ''}"
    heads = " and ".join(dict.fromkeys(clean(row.head) for row in table.rows))
    return f"{table.rounds} rounds in turn, each candidate in a process of its own with {threads}; head {heads}."
