"""What a verification found, and whether it is within tolerance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txl_export.errors import InputError
from txl_export.records import check_record
from txl_export.verification.measures import Measures
from txl_export.verification.trend import Trend

if TYPE_CHECKING:
    from txl_export.verification.bisection.finding import Finding

FORMAT = "txl-export-verify"
SCHEMA = 1


@dataclass(frozen=True)
class Tolerance:
    """What a precision may differ by.

    Attributes:
        log_probs: largest difference, nats; None to report only.
        perplexity: relative difference on real text.
        top1: least share of equal best tokens.
    """

    log_probs: float | None
    perplexity: float
    top1: float


# From the precision of a bundle; the reference's own rounding may widen the first two (see `Report.noise`).
TOLERANCES = {
    "fp32": Tolerance(1e-4, 1e-6, 1.0),
    "fp16": Tolerance(None, 1e-3, 0.99),
    "bf16": Tolerance(None, 5e-3, 0.99),
    "int8": Tolerance(None, 5e-3, 0.98),
    "int4": Tolerance(None, 5e-3, 0.98),
}
# A tolerance is at least this many times the reference's own difference between float32 and float64.
NOISE_FACTOR = 5.0
# Memory that differs by more than this share of a layer's largest value is named as the place of an error.
MEMORY_SHARE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 8e-2, "int8": 5e-2, "int4": 0.4}


@dataclass(frozen=True)
class Noise:
    """The reference's own rounding on these tokens: float32 against float64."""

    log_probs: float
    perplexity: float


@dataclass(frozen=True)
class SegmentResult:
    """One segment: distances of the answers, and of the memory after it.

    Attributes:
        index: number of the segment, from 0.
        start: tokens that each stream had consumed before it.
        length: its tokens.
        measures: distances of the answers.
        memory: per layer, the largest difference of a remembered number, as a share of the layer's largest.
    """

    index: int
    start: int
    length: int
    measures: Measures
    memory: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """The result of `verify`.

    Attributes:
        bundle: the bundle's path.
        checkpoint: the judge's path.
        backend: what ran the bundle.
        layout: its memory layout.
        precision: its precision.
        head: the head compared.
        mem_len: M.
        segment_len: tokens per segment.
        batch_size: streams.
        source: where the tokens come from.
        real: whether perplexity is judged.
        segments: results in order.
        trend: whether errors grow.
        noise: the reference's own rounding; None when no difference called for measuring it.
        notes: what a reader should know, a line each.
        bisect: where accuracy is lost; None when it was not searched for.
    """

    bundle: str
    checkpoint: str
    backend: str
    layout: str
    precision: str
    head: str
    mem_len: int
    segment_len: int
    batch_size: int
    source: str
    real: bool
    segments: tuple[SegmentResult, ...]
    trend: Trend
    noise: Noise | None = None
    notes: tuple[str, ...] = field(default=())
    bisect: Finding | None = None

    @property
    def limits(self) -> Tolerance:
        """The tolerances that apply: the precision's, or what the reference's own rounding calls for."""
        base = TOLERANCES[self.precision]
        if self.noise is None or base.log_probs is None:
            return base
        return Tolerance(
            max(base.log_probs, NOISE_FACTOR * self.noise.log_probs),
            max(base.perplexity, NOISE_FACTOR * self.noise.perplexity),
            base.top1,
        )

    @property
    def memory_share(self) -> float:
        """Share of a layer's largest remembered value beyond which the layer is named as the place of an error."""
        return MEMORY_SHARE[self.precision]

    @property
    def max_abs(self) -> float:
        """Largest difference of all segments."""
        return max(s.measures.max_abs for s in self.segments)

    @property
    def top1(self) -> float | None:
        """Share of positions whose best token is the reference's, over all segments; None where a head gives none."""
        shares = [(s.measures.top1, s.length) for s in self.segments]
        if any(share is None for share, _ in shares):
            return None
        return sum(share * n for share, n in shares if share is not None) / sum(n for _, n in shares)

    @property
    def _top1_holds(self) -> bool:
        """Whether no more best tokens differ than the share allows, rounded up: of 20 positions one may, if any."""
        if self.top1 is None:
            return True
        positions = self.batch_size * sum(s.length for s in self.segments)
        differ, rounding = (1 - self.top1) * positions, 1e-6
        return differ <= math.ceil((1 - self.limits.top1) * positions - rounding) + rounding

    def _sum(self, name: str) -> float | None:
        values = [getattr(s.measures, name) for s in self.segments]
        return None if any(v is None for v in values) else float(sum(values))

    @property
    def perplexities(self) -> tuple[float, float] | None:
        """Perplexity by the bundle and by the reference, exp of mean nats; None where the head gives none."""
        found, expected, n = self._sum("nll"), self._sum("nll_reference"), self._sum("targets")
        if found is None or expected is None or not n:
            return None
        return _exp(found / n), _exp(expected / n)

    @property
    def perplexity_difference(self) -> float | None:
        """Relative difference of the perplexities."""
        found, expected, n = self._sum("nll"), self._sum("nll_reference"), self._sum("targets")
        if found is None or expected is None or not n:
            return None
        return abs(math.expm1(min((found - expected) / n, 700.0))) if math.isfinite(found) else math.inf

    @property
    def passed(self) -> bool:
        """Whether everything is within tolerance."""
        return self.failure is None

    @property
    def failure(self) -> str | None:
        """One line that names the first segment and layer out of tolerance; None when there is none."""
        limits = self.limits
        if (s := self.failed_segment) and (what := self._wrong(s)):
            return self._failed(s, what)
        apart = self.perplexity_difference
        if self.real and apart is not None and not apart <= limits.perplexity:
            return f"perplexity differs by {apart:.1e} relative, tolerance {limits.perplexity:.1e}"
        if self.trend.drifts:
            return f"errors grow with the number of segments: {self.trend.describe()}"
        return None

    @property
    def worst_segment(self) -> SegmentResult:
        """The first segment out of tolerance; where only a sum over all is, the one with the largest error."""
        return self.failed_segment or max(self.segments, key=lambda s: s.measures.max_abs)

    @property
    def failed_segment(self) -> SegmentResult | None:
        """The first segment that is out of tolerance by itself."""
        return next((s for s in self.segments if self._wrong(s)), None)

    def _wrong(self, s: SegmentResult) -> str | None:
        """What is out of tolerance in a segment; None when nothing is."""
        limits = self.limits
        if limits.log_probs is not None and not s.measures.max_abs <= limits.log_probs:
            return f"{self.head} differs by {s.measures.max_abs:.1e}, tolerance {limits.log_probs:.1e}"
        # A share of all positions: one of a short segment's may differ where the precision allows any to.
        if s.measures.top1 is not None and s.measures.top1 < limits.top1 and not self._top1_holds:
            return f"best token agrees at {s.measures.top1:.1%} of positions, expected {limits.top1:.0%}"
        return None

    def _failed(self, s: SegmentResult, what: str) -> str:
        layer = next((n for n, share in enumerate(s.memory) if not share <= self.memory_share), None)
        where = (
            f"layer {layer} is the first whose memory differs" if layer is not None else "every layer's memory agrees"
        )
        return f"segment {s.index} (token {s.start}): {what}; {where}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        limits, perplexities = self.limits, self.perplexities
        names = (
            "bundle",
            "checkpoint",
            "backend",
            "layout",
            "precision",
            "head",
            "mem_len",
            "segment_len",
            "batch_size",
        )
        value: dict[str, Any] = {"format": FORMAT, "schema": SCHEMA} | {name: getattr(self, name) for name in names}
        value |= {
            "source": self.source,
            "real": self.real,
            "passed": self.passed,
            "failure": self.failure,
            "max_abs": self.max_abs,
            "perplexity": perplexities[0] if perplexities else None,
            "perplexity_reference": perplexities[1] if perplexities else None,
            "perplexity_difference": self.perplexity_difference,
            "tolerance": dataclasses.asdict(limits),
            "noise": dataclasses.asdict(self.noise) if self.noise else None,
            "trend": dataclasses.asdict(self.trend) | {"text": self.trend.describe()},
            "notes": list(self.notes),
            "segments": [_flat(s) for s in self.segments],
            "bisect": self.bisect.to_dict() if self.bisect else None,
        }
        return value

    @classmethod
    def from_dict(cls, value: Any) -> Report:
        """Take back what `to_dict` gave, also through JSON, where what is not finite is null; verdicts are judged anew.

        Raises:
            InputError: something else, or of another version.
        """
        if not isinstance(value, Mapping) or (value.get("format"), value.get("schema")) != (FORMAT, SCHEMA):
            raise InputError(f"this is no verification of this version: expected format {FORMAT!r}, schema {SCHEMA}")
        try:
            given = {f.name: value[f.name] for f in dataclasses.fields(cls)}
            given["segments"] = tuple(_segment(s) for s in value["segments"])
            given["trend"] = Trend(**{f.name: value["trend"][f.name] for f in dataclasses.fields(Trend)})
            given["noise"] = Noise(**{k: _number(x) for k, x in noise.items()}) if (noise := value["noise"]) else None
            given["notes"] = tuple(value["notes"])
            given["bisect"] = _finding(value["bisect"])
            report = cls(**given)
            _check(report)
            report.to_dict()  # whatever does not fit together shows here, not on a page
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
            raise InputError(f"this verification is damaged ({type(e).__name__}: {e}): run it again") from None
        return report


def _check(report: Report) -> None:
    from txl_export.verification.bisection.finding import Finding

    check_record(report, Finding=Finding)
    counts = [report.mem_len, report.segment_len - 1, report.batch_size - 1]
    counts += (n for s in report.segments for n in (s.index, s.start, s.length - 1, s.measures.targets))
    if min(counts) < 0:
        raise ValueError("a length or count is negative")


def _flat(s: SegmentResult) -> dict[str, Any]:
    value = dataclasses.asdict(s)
    return value | value.pop("measures")


def _segment(value: Mapping[str, Any]) -> SegmentResult:
    """The segment that `_flat` gave."""
    measures = {f.name: value[f.name] for f in dataclasses.fields(Measures)}
    # Distances are always there, and so is the bundle's side of a comparison whose other side is.
    for name in ("max_abs", "mean_abs", *(["nll"] if measures["nll_reference"] is not None else [])):
        measures[name] = _number(measures[name])
    memory = tuple(_number(share) for share in value["memory"])
    return SegmentResult(value["index"], value["start"], value["length"], Measures(**measures), memory)


def _finding(value: Mapping[str, Any] | None) -> Finding | None:
    from txl_export.verification.bisection.finding import Finding

    return None if value is None else Finding.from_dict(value)


def _number(x: Any) -> float:
    return math.inf if x is None else float(x)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
