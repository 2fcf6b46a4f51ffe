"""Other ways to run the same models, timed beside this package: `python -m benchmarks`."""
