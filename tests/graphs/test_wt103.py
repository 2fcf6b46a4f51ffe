"""The published sizes: wt103-base and wt103-large, with random weights, by name."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys, time
import numpy as np
import txl_export as txl

name, out = sys.argv[1:]
start = time.perf_counter()
checkpoint = txl.random_checkpoint(name)
config = checkpoint.config
count = sum(w.size for w in checkpoint.weights.values())
bundle = txl.export(checkpoint, out, layout="kv", segment_lens=("1-8",))
del checkpoint
rng = np.random.default_rng(0)
session = txl.Engine.load(bundle).session()
off = []
for _ in range(2):
    log_probs = session.feed(rng.integers(0, config.vocab_size, (1, 8)))
    off.append(float(np.abs(np.exp(log_probs.astype(np.float64)).sum(-1) - 1).max()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({
    "parameters": count, "shape": log_probs.shape, "off": max(off), "positions": session.positions.tolist(),
    "mem_len": session.info.mem_len, "peak_gib": peak, "seconds": time.perf_counter() - start,
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name, millions", [("kimiyoung/wt103-large", 285)])
def test_exports_and_sums_to_one_within_24_gb(tmp_path, name, millions):
    try:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, name, str(tmp_path / "bundle")], capture_output=True, text=True
        )
    finally:
        for file in (tmp_path / "bundle").glob("*"):  # gigabytes: pytest would keep them
            file.unlink()
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    print(found)
    assert round(found["parameters"] / 1e6) == millions
    assert found["shape"] == [1, 8, 267735] and found["positions"] == [16]
    assert found["off"] < 1e-4
    assert found["peak_gib"] < 24
