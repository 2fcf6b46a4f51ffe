"""`verify`: run a bundle and its judge over the same tokens and compare after every segment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.bundle import Bundle, Manifest
from txl_export.checkpoints import Checkpoint
from txl_export.errors import InputError
from txl_export.judge import judge_of
from txl_export.runtime.engine import Engine
from txl_export.runtime.session import Session
from txl_export.tokens import Tokens, choose
from txl_export.verification.measures import MEASURES
from txl_export.verification.report import TOLERANCES, Noise, Report, SegmentResult
from txl_export.verification.trend import fit
from txl_export.vocabulary import splitting_at_blanks

if TYPE_CHECKING:
    from txl_export.backends.eager import EagerModel, EagerStreams
    from txl_export.verification.bisection import Finding

Progress = Callable[[int, int], None]


def verify(
    bundle: str | Path | Bundle,
    checkpoint: str | Path | Checkpoint | None = None,
    text: bytes | None = None,
    ids: np.ndarray | None = None,
    random: int | None = None,
    segments: int = 64,
    segment_len: int | None = None,
    batch_size: int = 1,
    head: str | None = None,
    backend: str | None = None,
    progress: Progress | None = None,
    bisect: bool = False,
    pretokenized: bool = False,
    adapter: str | Path | Sequence[str | Path] = (),
) -> Report:
    """Compare a bundle with the trained model over many segments, the memory fed back in both.

    Args:
        bundle: the bundle, or its folder.
        checkpoint: the judge; None for the one that the manifest names.
        text: bytes of a text to run on, by the bundle's vocabulary.
        ids: tokens to run on, integers [n] or [B, n].
        random: seed of random tokens; the source when none is given.
        segments: how many segments to run, at most.
        segment_len: tokens per segment; None for the bundle's default.
        batch_size: streams; a text is dealt to them in adjoining parts.
        head: the head to compare; None for the bundle's first.
        backend: what runs the bundle; None for the fastest here.
        progress: called with (segments done, segments in all).
        bisect: find where accuracy is lost when something is out of tolerance: `report.bisect`.
        pretokenized: the text's words are set apart by blanks already, whatever splits raw text for the bundle.
        adapter: the adapters of the checkpoint, where the bundle was exported with some; () for those that the
            manifest names.

    Returns:
        The report; `report.passed` says whether all is within tolerance.

    Raises:
        InputError: tokens, numbers or a head that do not fit, or no judge to be found.
        BundleError, CheckpointError: a bundle or judge that cannot be read.
    """
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    _check_numbers(opened.manifest, segments, batch_size, random)
    judge, notes = judge_of(opened, checkpoint, adapter)
    opened = dataclasses.replace(opened, judge=judge)
    engine = Engine.load(opened, backend, segment_len=segment_len)
    notes = tuple(dict.fromkeys((*notes, *engine.info.notes, *engine.model.notes)))
    cut, name = engine.info.segment_len, head or engine.info.heads[0]
    vocab = splitting_at_blanks(opened.vocab) if pretokenized else opened.vocab
    tokens = choose(text, ids, random, vocab, engine.info.config.vocab_size, batch_size, segments * cut + 1)
    reference = Session(_reference_model(judge, opened.manifest), batch_size)
    results = _run(engine.session(batch_size), reference, tokens, cut, name, progress)
    notes = (*notes, *tokens.notes)
    if len(results) < segments:
        notes = (*notes, f"the {tokens.source} ended after {len(results)} of {segments} segments")
    settled = engine.info.config.n_layer * engine.info.mem_len
    report = Report(
        bundle=str(opened.path),
        checkpoint=" with ".join(map(str, (judge.path or "checkpoint in memory", *(a.path for a in judge.adapters)))),
        backend=engine.backend,
        layout=engine.info.layout,
        precision=opened.manifest.precision,
        head=name,
        mem_len=engine.info.mem_len,
        segment_len=cut,
        batch_size=batch_size,
        source=tokens.source,
        real=tokens.real,
        segments=tuple(results),
        trend=fit([r.measures.max_abs for r in results], [r.start for r in results], settled, cut),
        notes=notes,
    )
    if not report.passed:
        report = dataclasses.replace(report, noise=_noise(judge, opened.manifest, report, tokens))
    if bisect:
        from txl_export.verification.bisection.search import find

        report = dataclasses.replace(report, bisect=find(opened, engine, judge, tokens, report))
    return report


def bisect(bundle: str | Path | Bundle, **options: Any) -> Finding:
    """Find where a bundle loses accuracy: the segment, the layer, the node, and the likely cause.

    Args:
        bundle: the bundle, or its folder.
        options: as `verify` takes them.

    Returns:
        The finding; its `lost` is False where every segment is within tolerance.

    Raises:
        InputError: as `verify`, or a backend that shows no intermediate values.
        BundleError, CheckpointError: a bundle or judge that cannot be read.
    """
    found = verify(bundle, bisect=True, **options).bisect
    assert found is not None
    return found


def _check_numbers(manifest: Manifest, segments: int, batch_size: int, random: int | None) -> None:
    if segments < 1:
        raise InputError(f"segments is {segments}, expected 1 or more to compare")
    if not 1 <= batch_size <= manifest.max_batch:
        raise InputError(f"batch_size is {batch_size}, expected 1 to {manifest.max_batch} streams")
    if random is not None and random < 0:
        raise InputError(f"random is {random}, expected a seed of 0 or more")


def _reference_model(judge: Checkpoint, manifest: Manifest) -> EagerModel:
    """The judge in eager, with the bundle's M and k."""
    from txl_export.backends.eager import EagerModel

    return EagerModel(judge, manifest.mem_len, manifest.segment_len, manifest.top_k)


def _run(
    session: Session, judge: Session, tokens: Tokens, cut: int, head: str, progress: Progress | None
) -> list[SegmentResult]:
    """Feed both segment by segment."""
    spec = session.info.head(head)
    total = max(1, (tokens.ids.shape[1] - 1) // cut)
    results = []
    for i in range(total):
        x, y = tokens.ids[:, i * cut : (i + 1) * cut], tokens.ids[:, i * cut + 1 : (i + 1) * cut + 1]
        x = x[:, : y.shape[1]]  # a text shorter than one segment ends with a target
        asked = y[:, -1:] if spec.last_only else y
        targets = asked if spec.takes_targets else None
        found = session.feed(x, cut, head, targets=targets)
        expected = judge.feed(x, cut, head, targets=targets)
        measures = MEASURES[spec.kind](found, expected, asked)
        results.append(SegmentResult(i, i * cut, x.shape[1], measures, _memory_apart(session, judge)))
        if progress:
            progress(i + 1, total)
    return results


def _memory_apart(session: Session, judge: Session) -> tuple[float, ...]:
    """Per layer the largest difference of the memories of all streams, as a share of the layer's largest value."""
    reference: EagerStreams = judge._streams  # type: ignore[assignment]
    apart, largest = np.zeros(session.info.config.n_layer), np.full(session.info.config.n_layer, 1e-30)
    if not session.info.mem_len:
        return tuple(apart)
    for stream in range(session.batch_size):
        expected = reference.projected_memory(stream, session.info.layout)
        for n, (a, b) in enumerate(zip(session.memory_tensors(stream), expected, strict=True)):
            for kind in b:
                apart[n] = max(apart[n], float(np.abs(a[kind] - b[kind]).max()))
                largest[n] = max(largest[n], float(np.abs(b[kind]).max()))
    return tuple(float(share) for share in apart / largest)


def _noise(judge: Checkpoint, manifest: Manifest, report: Report, tokens: Tokens) -> Noise | None:
    """The reference's own rounding on the same tokens, float32 against float64; None where nothing has a tolerance."""
    if TOLERANCES[report.precision].log_probs is None:
        return None
    single = Session(_reference_model(judge, manifest), report.batch_size)
    double = Session(_reference_model(judge, manifest).double(), report.batch_size)
    results = _run(single, double, tokens, report.segment_len, report.head, None)
    rounding = dataclasses.replace(report, segments=tuple(results))
    return Noise(rounding.max_abs, rounding.perplexity_difference or 0.0)
