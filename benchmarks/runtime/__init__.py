"""What the loop of layout `ring` costs: see `python -m benchmarks.runtime --help`."""
