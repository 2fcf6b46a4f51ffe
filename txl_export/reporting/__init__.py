"""Pictures of benchmarks and verifications, and the report of a bundle as one HTML file."""

from txl_export.reporting.run import Written, default_lengths, report

__all__ = ["Written", "default_lengths", "report"]
