"""What this machine has, which backends work on it, and what brings the others."""

from txl_export.diagnosis.report import Report
from txl_export.diagnosis.run import doctor

__all__ = ["Report", "doctor"]
