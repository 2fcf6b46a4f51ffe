"""`txl-export inspect`: what something is and what it costs to run."""

from __future__ import annotations

from typing import Any

import click

from txl_export.cli._engines import print_engines
from txl_export.cli._options import INTS, LAYOUT, Reading, checkpoint_options, examples, json_option
from txl_export.cli._output import print_fields, print_json, print_table
from txl_export.units import si

EXAMPLES = examples(
    "inspect models/stdlib-bytes",
    "inspect kimiyoung/wt103-large --mem-lens 640,1600,3800",
    "inspect engines/stdlib-bytes --json",
)


@click.command(epilog=EXAMPLES)
@click.argument("target", metavar="CKPT|BUNDLE|CONFIG-NAME")
@click.option(
    "--mem-lens", type=INTS, default="128,512,1600", help="Memory lengths M to give costs at, besides the stored one."
)
@checkpoint_options
@json_option
def command(target: str, mem_lens: tuple[int, ...], reading: Reading, as_json: bool) -> None:
    """Say what a checkpoint, bundle or named configuration is and what it costs to run.

    Costs are arithmetic, not measured: one token of one stream with a full memory, in float32.
    """
    from txl_export.cli._describe import describe

    found = describe(target, reading, mem_lens)
    if as_json:
        print_json(found)
        return
    about = _bundle_fields(found) if found["kind"] == "bundle" else _source_fields(found)
    print_fields(about | _model_fields(found))
    for note in found.get("notes", ()):
        click.echo(f"note: {note}")
    if "policy" in found:
        _print_policy(found["policy"])
    if "graphs" in found:
        rows = [(g["file"], g["head"], g["segment"]) for g in found["graphs"]]
        print_table("Graphs", ("file", "head", "tokens per call"), rows, left=2)
    print_engines(found.get("engines", ()))
    _print_costs(found)
    if "export" in found:
        _print_export(found["export"])


def _print_policy(policy: dict[str, Any]) -> None:
    from txl_export.precision import PrecisionPolicy

    for line in PrecisionPolicy.from_dict(policy).describe():
        click.echo(line)
    rows = [(n, c["precision"], c["largest"] or "", c["why"]) for n, c in policy["choices"].items()]
    if rows:
        print_table("Precision by tensor", ("tensor", "precision", "largest", "why"), rows, left=2)


def _source_fields(found: dict[str, Any]) -> dict[str, object]:
    return {
        found["kind"]: found.get("path") or found["name"],
        "origin": f"{found['origin']} ({found['reason']})" if "origin" in found else None,
        "vocabulary": found.get("vocabulary"),
        "overridden": _pairs(found["overrides"]) or None,
        **_adapter_fields(found),
    }


def _bundle_fields(found: dict[str, Any]) -> dict[str, object]:
    judge = found["judge"]
    state_bytes = sum(s["bytes_per_stream"] for s in found["states"])
    return {
        "bundle": f"{found['path']} ({si(found['bytes'], 'B')}, schema {found['schema']})",
        "layout": f"{found['layout']}, {found['precision']}",
        "memory length M": _lengths(found),
        "segment length": found["segment_len"],
        **_ring_fields(found["ring"]),
        "states": f"{len(found['states'])} tensors, {si(state_bytes, 'B')} per stream",
        "vocabulary": found["vocabulary"],
        "judge": _where(judge),
        **_adapter_fields(found),
        "made with": ", ".join(f"{k} {v}" for k, v in found["versions"].items()),
    }


def _lengths(found: dict[str, Any]) -> str:
    return str(found["mem_len"]) + (", or fewer: each session chooses" if found["ring"] else "")


def _ring_fields(ring: dict[str, int] | None) -> dict[str, object]:
    if ring is None:
        return {}
    rows = f"S = {ring['ring']} written round and round, and G = {ring['guard']} behind them"
    return {"rows of memory": rows, "rewind": f"{ring['rewind']} tokens can be taken back at any time"}


def _adapter_fields(found: dict[str, Any]) -> dict[str, object]:
    from txl_export.checkpoints.adapters import described

    said = [f"{a['path']}: {described(a)}" for a in found.get("adapters", ())]
    names = (f"adapter {i}" if len(said) > 1 else "adapter" for i in range(1, len(said) + 1))
    return dict(zip(names, said, strict=False))


def _where(judge: dict[str, Any]) -> str:
    """Where the checkpoint is that a bundle was exported from."""
    drawn = judge["random"]
    if judge["found"]:
        return str(judge["found"])
    if drawn:
        return f"random weights of {drawn['name']}, seed {drawn['seed']}: drawn again when they are needed"
    lost = f"not found (it was at {judge['recorded']}): give verify --checkpoint"
    return lost if judge["recorded"] else "none recorded"


def _model_fields(found: dict[str, Any]) -> dict[str, object]:
    m, p = found["model"], found["parameters"]
    shape = (
        f"{m['n_layer']} layers, d_model {m['d_model']}, {m['n_head']} heads of {m['d_head']}, d_inner {m['d_inner']}"
    )
    softmax = f"{m['vocab_size']:,} tokens"
    if m["cutoffs"]:
        softmax += f", cutoffs {', '.join(map(str, m['cutoffs']))}, div_val {m['div_val']}"
    return {
        "architecture": f"{shape}, {'pre' if m['pre_lnorm'] else 'post'}-LN",
        "softmax": softmax,
        "evaluation": _pairs({k: m[k] for k in ("mem_len", "same_length", "clamp_len")}),
        "dialect": _pairs(found["dialect"]),
        "parameters": f"{si(p['total'])}, {si(p['without_embedding_and_softmax'])} without embedding and softmax",
    }


def _print_costs(found: dict[str, Any]) -> None:
    from txl_export.cost import compared_layouts

    layouts = compared_layouts(found.get("layout", LAYOUT))
    kinds = (("memory", "memory_bytes", "B"), ("FLOPs", "flops_per_token", ""), ("read", "bytes_read_per_token", "B"))
    columns = ["M", *(f"{title} {layout}" for title, _, _ in kinds for layout in layouts)]
    rows = [
        [row["mem_len"], *(si(row["layouts"][n][key], unit) for _, key, unit in kinds for n in layouts)]
        for row in found["costs"]
    ]
    print_table(
        "In fp32: memory per stream, FLOPs and bytes read per token, by memory length and layout", columns, rows, left=0
    )


def _print_export(plan: dict[str, Any]) -> None:
    if "impossible" in plan:
        click.echo(f"export needs options: {plan['impossible']}")
        return
    title = (
        f"export makes, unless told otherwise: M = {plan['mem_len']}, layout {plan['layout']}, "
        f"{plan['precision']}, about {si(plan['bytes'], 'B')}"
    )
    why = "added: lengths between the others could not be run exactly"
    rows = [(g["head"], g["segment"], why if g["added"] else "") for g in plan["graphs"]]
    print_table(title, ("head", "tokens per call", ""), rows, left=3)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items())
