"""Proof that a bundle gives the trained model's numbers: the same tokens through both, segment by segment."""

from txl_export.verification.bisection import Finding
from txl_export.verification.render import render
from txl_export.verification.report import Report, SegmentResult
from txl_export.verification.run import bisect, verify

__all__ = ["Finding", "Report", "SegmentResult", "bisect", "render", "verify"]
