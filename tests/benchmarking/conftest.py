"""Bundles with nothing traced in them, and workers with nothing behind them: most of a benchmark needs neither."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import random_checkpoint, tiny_config
from txl_export.benchmarking import limits, process
from txl_export.bundle import INITIAL, MANIFEST, WEIGHTS, GraphSpec, Manifest, file_entry
from txl_export.checkpoints import native
from txl_export.files import write_json
from txl_export.precision import PrecisionPolicy
from txl_export.segments import SegmentRange
from txl_export.vocabulary import ByteVocabulary

# Answers like a worker: eager takes 8 ms in round 1, 16 in round 2, others 2 ms; `{extra}` runs at a round.
STUB = """
import json, sys
rounds = 0
for line in iter(sys.stdin.readline, ""):
    message = json.loads(line)
    if message["do"] == "load":
        cell = message
        answer = {{"filled": cell["mem_len"], "load_ms": 30.0, "first_ms": 50.0, "memory_bytes": 1024}}
    elif message["do"] == "end":
        answer = {{"peak_rss": 5_000_000, "calls_rss": 4_000_000}}
    else:
        rounds += 1
        {extra}
        ms = 8.0 * rounds if cell["backend"] == "eager" else 2.0
        answer = {{"samples_ms": [ms, ms, ms + 1]}}
    print(json.dumps(answer), flush=True)
"""

# Answers like `rates`: 1 GB/s from arrays up to 1 MB, 3 GB/s from 100 MB on, 4 GFLOP/s.
RATES = """
import json, os
read = [{"bytes": 10**6, "bytes_per_second": 1e9}, {"bytes": 10**8, "bytes_per_second": 3e9}]
matmul = [{"size": 512, "flops_per_second": 3e9}, {"size": 1024, "flops_per_second": 4e9}]
print(json.dumps({"threads": int(os.environ["OMP_NUM_THREADS"]), "read": read, "matmul": matmul}))
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A native checkpoint of random weights, M = 6."""
    return native.save(tmp_path / "checkpoint", random_checkpoint(tiny_config()))


@pytest.fixture
def bytes_model(tmp_path: Path) -> Path:
    """A native checkpoint that reads bytes, M = 6."""
    made = random_checkpoint(tiny_config(vocab_size=256), std=0.3)
    return native.save(tmp_path / "bytes", dataclasses.replace(made, vocab=ByteVocabulary()))


@pytest.fixture
def hollow_bundle(tmp_path: Path, checkpoint: Path) -> Callable[..., Path]:
    """Makes a bundle that opens but holds no graph that runs; keywords replace fields of its manifest."""

    def make(name: str = "bundle", segments: tuple[str, ...] = ("1",), head: str = "log_probs", **fields: Any) -> Path:
        path = tmp_path / name
        path.mkdir()
        loaded = native.load(checkpoint)
        graphs = tuple(GraphSpec(f"{s}.onnx", SegmentRange.parse(s), head) for s in segments)
        for file in (WEIGHTS, INITIAL, *(g.file for g in graphs)):
            (path / file).write_bytes(b"hollow")
        usual: dict[str, Any] = {
            "layout": "kv", "policy": PrecisionPolicy(), "mem_len": 6, "segment_len": graphs[0].segment.hi, "top_k": 5,
            "max_batch": 64, "rewind": 0, "judge": {"path": "../checkpoint", "origin": "native", "overrides": {}},
        }  # fmt: skip
        manifest = Manifest(config=loaded.config, dialect=loaded.dialect, graphs=graphs, **usual | fields)
        files = {f.name: file_entry(f) for f in path.iterdir()}
        write_json(path / MANIFEST, dataclasses.replace(manifest, files=files).to_dict())
        return path

    return make


@pytest.fixture
def planted_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what the machine can do instead of measuring it."""
    script = tmp_path / "rates.py"
    script.write_text(RATES)
    monkeypatch.setattr(limits, "COMMAND", (sys.executable, str(script)))


@pytest.fixture
def stub_workers(tmp_path: Path, planted_rates: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces workers by a script with planted samples; takes a statement to run at every round."""

    def plant(extra: str = "pass") -> None:
        script = tmp_path / "stub.py"
        script.write_text(STUB.format(extra=extra))
        monkeypatch.setattr(process, "COMMAND", (sys.executable, str(script)))

    return plant


class Traces:
    """What a benchmark may leave behind: processes, and files in the temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def assert_gone(self) -> None:
        """Every process has ended and was waited for, and the temporary folder is empty."""
        assert self.processes, "no worker was ever started"
        assert all(p.returncode is not None for p in self.processes)
        assert list(self.folder.glob("txl-*")) == []


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traces:
    """Follows the processes that are started and gives the test a temporary folder of its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    found, start = Traces(folder), subprocess.Popen

    def follow(*args: Any, **kwargs: Any) -> Any:
        process = start(*args, **kwargs)
        if process.args[0] == sys.executable:  # the platform module starts others
            found.processes.append(process)
        return process

    monkeypatch.setattr(process.subprocess, "Popen", follow)
    return found
