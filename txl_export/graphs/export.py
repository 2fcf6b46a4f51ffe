"""From a checkpoint to a bundle: trace one graph per segment length and head, share their weights."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from txl_export.bundle import (
    CHECKPOINT,
    FORMAT,
    INITIAL,
    MANIFEST,
    WEIGHTS,
    Bundle,
    GraphSpec,
    Manifest,
    file_entry,
)
from txl_export.checkpoints import Checkpoint, native
from txl_export.engines import is_leftover
from txl_export.errors import BundleError, ExportError, InputError
from txl_export.files import read_json, replacing_folder, require_space, sha256, write_atomic, write_json
from txl_export.graphs.assembly import Assembler
from txl_export.graphs.calibration import calibration_tokens
from txl_export.graphs.choosing import choose_policy
from txl_export.graphs.layouts import TRACED
from txl_export.graphs.merge_check import check_merge
from txl_export.graphs.model import SegmentGraph
from txl_export.graphs.tracing import MAX_BATCH
from txl_export.graphs.weight_store import WeightStore
from txl_export.heads import head_spec
from txl_export.layouts import DEFAULT_LAYOUT, layout_of
from txl_export.precision import MEMORY, PrecisionPolicy
from txl_export.reference import TransformerXL
from txl_export.room import SMALLER, require_room
from txl_export.segments import SegmentRange
from txl_export.weights import count_parameters

Progress = Callable[[str, int, int], None]
MOST_SEGMENT = 2**20  # tokens; each takes a row of memory where calls are shorter than segments


def export(
    checkpoint: Checkpoint,
    out_dir: str | Path,
    mem_len: int | None = None,
    segment_lens: Iterable[int | str] | None = None,
    layout: str = DEFAULT_LAYOUT,
    precision: str = "fp32",
    head: str | Iterable[str] = "log_probs",
    segment_len: int | None = None,
    top_k: int = 40,
    keep_checkpoint: bool = False,
    cover: bool = True,
    memory_precision: str | None = None,
    tensors: Mapping[str, str] | None = None,
    calibration: bytes | np.ndarray | PrecisionPolicy | None = None,
    rewind: int = 0,
    progress: Progress | None = None,
) -> Bundle:
    """Export a checkpoint as a bundle of ONNX graphs with the memory as inputs and outputs.

    Args:
        checkpoint: a loaded checkpoint; its adapters are in the weights, which is checked first.
        out_dir: the bundle's folder; an existing bundle is replaced once the new one is complete.
        mem_len: memory length M in tokens; None for the checkpoint's.
        segment_lens: a graph for each: a number of tokens, or a range such as "1-64"; None for what the layout
            has by default. In layout "ring" they are lengths of calls, of which a segment may take several.
        layout: "ring", "kv" or "hidden".
        precision: of products and memory: "fp32", "fp16" or "bf16". In a half precision LayerNorm, softmax and
            the residual stream stay in fp32, and so do products whose numbers a calibration run finds too large.
            "int8" and "int4" store weights in so many bits, for ONNX Runtime on CPUs: all else is fp32, and so are
            weights whose rounding costs the calibration text too much of its perplexity.
        head: one or several heads; the first is the default of sessions.
        segment_len: tokens after which a feed is cut by default; None for the longest of `segment_lens`.
        top_k: tokens that head "top_k" returns, at most V.
        cover: add a graph for a range where the segment lengths leave some length up to the longest that
            could not be run exactly.
        keep_checkpoint: put a native copy of the checkpoint into the bundle, for `verify`.
        memory_precision: of the memory tensors, "fp32" or a half `precision`; None for what calibration finds, which is
            `precision` unless the memory's numbers are too large for it.
        tensors: precision by name (`txl_export.precision`), such as {"layers.*.content": "fp32"}; goes before what
            calibration finds.
        calibration: what to calibrate a precision other than fp32 on: a text, tokens [n] or [B, n], or a policy to
            take as it is; None for random tokens, which show less than text does.
        rewind: tokens that sessions can take back at any time (layout "ring"); each takes a row of memory.
        progress: called with (what is being done, steps done, steps in all).

    Raises:
        InputError: a length, head or number that cannot be had.
        ConfigError: a layout or evaluation values that do not fit.
        ExportError: the folder holds something else, or tracing specialised what must stay symbolic.
        ToleranceError: adapters give other numbers merged than unmerged.
        EnvironmentMismatch: not enough disk space; nothing is left behind.
    """
    segments = layout_of(layout).graphs(segment_lens, checkpoint.config.same_length, cover)
    asked = dict(tensors or {}) | ({MEMORY: memory_precision} if memory_precision else {})
    policy = calibration if isinstance(calibration, PrecisionPolicy) else PrecisionPolicy(precision)
    policy = policy.overridden(asked, checkpoint.config.n_layer)
    manifest = _plan(checkpoint, mem_len, segments, layout, policy, head, segment_len, top_k, rewind)
    tokens = calibration_tokens(checkpoint, manifest, calibration)
    out = Path(out_dir)
    _check_target(out)
    needed = _bytes_needed(manifest, keep_checkpoint)
    require_room(needed // 2, f"exporting with mem_len {manifest.mem_len:,}", SMALLER)
    require_space(out, needed)
    model = TransformerXL.from_checkpoint(checkpoint)
    report = progress or (lambda *_: None)
    if checkpoint.adapters:
        report("comparing merged and unmerged adapters", 0, 1)
        check_merge(checkpoint, model, manifest.mem_len)
    if tokens is not None:
        policy = choose_policy(model, manifest, tokens, lambda i, n: report(f"calibrating {precision}", i, n))
        manifest = dataclasses.replace(manifest, policy=policy.overridden(asked, manifest.config.n_layer))
    with replacing_folder(out) as work:
        with WeightStore(work / WEIGHTS) as store:
            assembler = Assembler(SegmentGraph(model, manifest), manifest)
            for i, graph in enumerate(manifest.graphs):
                report(f"tracing {graph.head}, segment {graph.segment}", i, len(manifest.graphs))
                built = assembler.build(graph)
                store.move_out(built)
                ir.save(built, work / graph.file)
        report("writing", len(manifest.graphs), len(manifest.graphs))
        _write_initial(model, manifest, work / INITIAL)
        for name, content in (checkpoint.vocab.files() if checkpoint.vocab else {}).items():
            write_atomic(work / name, content)
        if keep_checkpoint:
            native.save(work / CHECKPOINT, checkpoint)
        _write_manifest(manifest, checkpoint, work, out)
    return Bundle.open(out, check_files=False)


def _plan(
    checkpoint: Checkpoint,
    mem_len: int | None,
    segments: tuple[SegmentRange, ...],
    layout: str,
    policy: PrecisionPolicy,
    head: str | Iterable[str],
    segment_len: int | None,
    top_k: int,
    rewind: int = 0,
) -> Manifest:
    config, traits = checkpoint.config, layout_of(layout)
    M = config.mem_len if mem_len is None else mem_len
    if M < 0:
        raise InputError(f"mem_len is {M}, expected 0 or more tokens")
    if not top_k >= 1:
        raise InputError(f"top_k is {top_k}, expected 1 or more tokens")
    top_k = min(top_k, config.vocab_size)
    heads = tuple(dict.fromkeys([head] if isinstance(head, str) else head))
    if not heads:
        raise InputError("no head given: name at least one, such as log_probs")
    for name in heads:
        head_spec(name, config, top_k)
    if not isinstance(rewind, int) or rewind < 0 or (rewind and not traits.in_place):
        raise InputError(f"rewind is {rewind!r} in layout {layout!r}, expected 0 or, in layout 'ring', more tokens")
    checkpoint.dialect.window(config, M)
    longest = max(s.hi for s in segments)
    cut = longest if segment_len is None else segment_len
    if not 1 <= cut <= (MOST_SEGMENT if traits.in_place else longest):
        raise InputError(f"segment_len is {cut}, expected 1 to {longest}, the longest of --segment-lens")
    graphs = [GraphSpec(_file_name(h, s), s, h) for h, s in itertools.product(heads, segments)]
    vocabulary = checkpoint.vocab.to_dict() if checkpoint.vocab else None
    return Manifest(
        config,
        checkpoint.dialect,
        layout,
        policy,
        M,
        cut,
        top_k,
        MAX_BATCH,
        tuple(graphs),
        vocabulary=vocabulary,
        rewind=rewind,
    )


def _file_name(head: str, segment: SegmentRange) -> str:
    return f"{head.replace('@', '_')}.L{segment}.onnx"


def _check_target(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ExportError(f"{out} is a file, expected a folder to write the bundle to")
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        manifest = read_json(out / MANIFEST, BundleError)
        ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        known = {MANIFEST, CHECKPOINT, *manifest["files"]} if ours else set()
        known |= {
            p.name for p in out.iterdir() if ours and is_leftover(p.name, (g["file"] for g in manifest["graphs"]))
        }
    except (BundleError, KeyError, TypeError, AttributeError):
        known = set()
    if not known:
        raise ExportError(f"{out} holds files that are no bundle: choose an empty or new folder")
    for foreign in sorted({p.name for p in out.iterdir()} - known):
        raise ExportError(f"{out} holds {foreign}, which is not the bundle's: move it or choose another folder")


def _bytes_needed(manifest: Manifest, keep_checkpoint: bool) -> int:
    """A generous estimate: rearranged weights stand beside shared ones, tables once per layer."""
    c = manifest.config
    tables = c.n_layer * c.n_head * c.d_head * manifest.ring
    return 4 * (count_parameters(c) * (2 + keep_checkpoint) + tables) + 1_000_000 * len(manifest.graphs)


def _write_initial(model: TransformerXL, manifest: Manifest, path: Path) -> None:
    """The rows that a zero memory gives: zeros in `hidden`, keys and values of a zero row in `kv`."""
    from safetensors.numpy import save as to_bytes

    zero = torch.zeros(1, 1, manifest.config.d_model)
    rows = {}
    for n, layer in enumerate(model.stack):
        specs = [s for s in manifest.states if s.layer == n]
        for spec, row in zip(specs, TRACED[manifest.layout].project(layer.attention, zero), strict=False):
            rows[spec.input] = np.ascontiguousarray(row[0].numpy())  # float32, whatever the memory's type
    write_atomic(path, to_bytes(rows))


def _write_manifest(manifest: Manifest, checkpoint: Checkpoint, work: Path, out: Path) -> None:
    names = [WEIGHTS, INITIAL, *manifest.vocabulary_files, *(g.file for g in manifest.graphs)]
    packages = ("torch", "onnx", "onnxscript", "txl-export")
    full = dataclasses.replace(
        manifest,
        files={name: file_entry(work / name) for name in names},
        judge=_judge(checkpoint, out),
        versions={p: _version(p) for p in packages},
    )
    write_json(work / MANIFEST, full.to_dict())


def _judge(checkpoint: Checkpoint, out: Path) -> dict[str, Any]:
    """Where the checkpoint is, relative to the bundle, so that both can move together; or how it is drawn again."""
    judge: dict[str, Any] = {"origin": checkpoint.origin, "overrides": dict(checkpoint.overrides)}
    if checkpoint.random is not None:
        judge["random"] = checkpoint.random.to_dict()
    if checkpoint.path is not None:
        path = checkpoint.path.resolve()
        judge |= {"path": os.path.relpath(path, out.resolve()), "sha256": weights_hash(path)}
    if checkpoint.adapters:
        where = [os.path.relpath(a.path.resolve(), out.resolve()) for a in checkpoint.adapters]
        judge["adapters"] = [a.to_dict() | {"path": p} for a, p in zip(checkpoint.adapters, where, strict=True)]
    return judge if checkpoint.path or checkpoint.random else {}


def weights_hash(path: Path) -> str:
    """SHA-256 of a checkpoint: of the file, or of the largest file of a folder, where the weights are."""
    return sha256(
        path if path.is_file() else max((p for p in path.iterdir() if p.is_file()), key=lambda p: p.stat().st_size)
    )


def _version(package: str) -> str:
    from txl_export._version import __version__

    return __version__ if package == "txl-export" else version(package)
