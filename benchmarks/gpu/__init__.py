"""This package on a GPU beside PyTorch on the same GPU: `benchmarks/gpu.sh`, one command, under five minutes."""
