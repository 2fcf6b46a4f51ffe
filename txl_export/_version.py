"""The version, in one place that setuptools reads without importing the package."""

__version__ = "0.1.0"
