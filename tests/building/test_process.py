"""The package in a process of its own: it may be absent, broken, crash or hang; the command line stays polite."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building.conftest import PROXY, RTX, contents, needs_rtx, told
from tests.bundles import one_line
from txl_export.backends import cuda
from txl_export.backends.cuda import Device
from txl_export.building import build
from txl_export.building.process import BuilderProcess
from txl_export.bundle import Bundle
from txl_export.engines import Target
from txl_export.errors import BuildError, EnvironmentMismatch, InputError

L4 = Device("NVIDIA L4", "sm89")

ABSENT = "raise ModuleNotFoundError(\"No module named 'tensorrt'\", name='tensorrt')"
NO_LIBRARY = "raise ImportError('libnvinfer.so.11: cannot open shared object file')"
NO_BINDINGS = "raise ModuleNotFoundError(\"No module named 'tensorrt_bindings'\", name='tensorrt_bindings')"
STUB = ""
SILENT = "import os; os._exit(7)"
CRASH = """
import os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from tensorrt_rtx import *
__version__ = "1.0"
class Builder:
    def __init__(self, logger):
        os.kill(os.getpid(), signal.{signal})
"""
HANG = """
import os, time
from tensorrt_rtx import *
__version__ = "1.0"
import tensorrt_rtx as real
class Builder(real.Builder):
    def build_serialized_network(self, network, config):
        with open({fifo!r}, "w") as f:
            f.write(str(os.getpid()))
        time.sleep(600)
"""


@pytest.mark.parametrize(
    "code, says",
    [
        (ABSENT, "needs the package 'tensorrt', which is not installed: pip install 'txl-export[gpu]'"),
        (NO_LIBRARY, "cannot be imported (libnvinfer.so.11: cannot open shared object file)"),
        (NO_BINDINGS, "cannot be imported (No module named 'tensorrt_bindings')"),
        (STUB, "cannot be imported"),
        (SILENT, "tensorrt ended with exit code 7 while being loaded"),
    ],
)
def test_packages_that_are_not_there_or_not_whole(folder, stand_in, code, says):
    before = contents(folder)
    stand_in("tensorrt", code)
    with pytest.raises(EnvironmentMismatch) as e:
        build(folder, "tensorrt")
    assert says in one_line(e.value) and e.value.exit_code == 3
    assert contents(folder) == before


def test_what_is_imported_is_not_taken_from_the_present_folder(folder, tmp_path, monkeypatch, stand_in):
    stand_in("tensorrt", ABSENT)
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentMismatch, match="not installed"):
        build(folder, "tensorrt")


@pytest.mark.parametrize(
    "name, says", [("SIGSEGV", "signal 11 (SIGSEGV)"), ("SIGKILL", "signal 9 (SIGKILL), as when memory runs out")]
)
@needs_rtx
def test_a_crash_is_one_line(folder, stand_in, monkeypatch, name, says):
    before = contents(folder)
    stand_in("tensorrt", CRASH.format(signal=name))
    monkeypatch.setattr(cuda, "devices", lambda: [L4])
    with pytest.raises(EnvironmentMismatch) as e:
        build(folder, "tensorrt")
    assert f"tensorrt ended with {says} while reading log_probs.L1-8.onnx" in one_line(e.value)
    assert contents(folder) == before


RUN = """
import sys
from pathlib import Path
from txl_export.backends import cuda
cuda.devices = lambda: [cuda.Device("NVIDIA L4", "sm89")]
from txl_export.cli import main
main(sys.argv[1:])
"""


LONGEST = 60  # seconds until a test that would wait for ever gives up


def _said(fifo: Path) -> int:
    """The number that somebody writes into a pipe."""
    handle = os.open(fifo, os.O_RDWR)
    try:
        assert select.select([handle], [], [], LONGEST)[0], "the build has not begun"
        return int(os.read(handle, 100))
    finally:
        os.close(handle)


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
@needs_rtx
def test_interrupted_it_leaves_nothing(folder, stand_in, tmp_path, name, code):
    """The library is in the middle of a build and does not answer."""
    before, fifo = contents(folder), tmp_path / "fifo"
    os.mkfifo(fifo)
    stand_in("tensorrt", HANG.format(fifo=str(fifo)))
    command = [sys.executable, "-c", RUN, "build", str(folder), "--backend", "tensorrt"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            child = _said(fifo)  # when the build has begun
            running.send_signal(getattr(signal, name))
            _, errors = running.communicate(timeout=LONGEST)
        finally:
            running.kill()
    assert running.returncode == code
    assert errors == ("interrupted\n" if name == "SIGINT" else "")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert contents(folder) == before


# The other package, with the real one in its place


def test_without_a_gpu_tensorrt_says_what_builds_here(folder, stand_in, monkeypatch):
    stand_in("tensorrt", "__version__ = '11.4'\nclass ILogger:\n    class Severity: pass")
    monkeypatch.setattr(cuda, "devices", list)
    with pytest.raises(EnvironmentMismatch) as e:
        build(folder, "tensorrt")
    assert "needs an NVIDIA GPU to build and this machine has none" in one_line(e.value)
    assert "--backend tensorrt-rtx" in str(e.value)


@pytest.fixture
def proxy(stand_in, monkeypatch):
    """Package `tensorrt` on a machine with an L4."""
    monkeypatch.setattr(cuda, "devices", lambda: [L4])
    return stand_in("tensorrt", PROXY)


@needs_rtx
def test_tensorrt_builds_for_this_machines_gpu(folder, proxy):
    report = build(folder, "tensorrt")
    engine = report.engines[0].engine
    assert (engine.package, engine.version, engine.target) == ("tensorrt", "11.4.0.106", Target("NVIDIA L4", ("sm89",)))
    assert engine.file == "log_probs.L1-8.tensorrt.nvidia-l4.engine" and report.target == "NVIDIA L4 (sm89)"
    assert {(t["tf32"], t["capabilities"], t["opt_level"]) for t in told(proxy)} == {(False, 0, 3)}
    other = build(folder, "tensorrt-rtx", compute_capabilities=["sm80"]).bundle.manifest
    assert other.engines[:1] == report.bundle.manifest.engines and len(other.engines) == 2


@needs_rtx
def test_options_reach_the_package(folder, proxy, tmp_path):
    cache = tmp_path / "timings"
    options = {"tf32": True, "opt_level": 1, "workspace": 1 << 30, "timing_cache": cache}
    report = build(folder, "tensorrt", batch=1, **options)
    expected = {"tf32": True, "opt_level": 1, "workspace": 1 << 30, "capabilities": 0, "timings": True}
    assert told(proxy) == [expected]
    graph = report.engines[0].engine.graph_sha256[:12]
    assert [p.name for p in cache.iterdir()] == [f"tensorrt-11.4.0.106-nvidia-l4-{graph}.timings"]
    for changed in ({"tf32": False}, {"opt_level": 2}, {"workspace": None}):  # each is part of the key
        options |= changed
        assert all(b.new for b in build(folder, "tensorrt", batch=1, **options).engines)


@needs_rtx
def test_another_version_builds_again(folder, proxy):
    build(folder, "tensorrt", batch=1)
    (proxy / "tensorrt.py").write_text(PROXY.replace("11.4.0.106", "11.5.0.1"))
    again = build(folder, "tensorrt", batch=1)
    assert all(b.new and b.engine.version == "11.5.0.1" for b in again.engines)
    assert len(Bundle.open(folder).manifest.engines) == 1


@needs_rtx
def test_where_there_is_a_gpu_the_engine_is_looked_at(folder, proxy):
    before = contents(folder)
    (proxy / "tensorrt.py").write_text(PROXY.replace("OWN_TYPE = None", "OWN_TYPE = real.DataType.HALF"))
    with pytest.raises(BuildError) as e:
        build(folder, "tensorrt")
    assert "the engine of log_probs.L1-8.onnx in tensorrt: input key_00 is float16" in one_line(e.value)
    assert contents(folder) == before


@needs_rtx
@pytest.mark.skipif(bool(cuda.devices()), reason="here engines load, and the test is that they fail to")
def test_engines_for_others_than_this_gpu_are_not_looked_at(folder, monkeypatch):
    """The driver is not really there: whoever loads an engine fails."""
    monkeypatch.setattr(cuda, "devices", lambda: [Device("NVIDIA H200", "sm90"), L4])  # the package knows no sm90
    assert build(folder, "tensorrt-rtx", batch=1).engines
    monkeypatch.setattr(cuda, "devices", lambda: [L4])
    assert build(folder, "tensorrt-rtx", batch=1, compute_capabilities=["sm80"]).engines
    with pytest.raises(BuildError, match=r"while loading the engine of log_probs\.L1-8\.onnx: .*CUDA driver"):
        build(folder, "tensorrt-rtx", batch=2)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"compute_capabilities": ["sm80"]}, "this machine's GPU only"),
        ({"backend": "tensorrt-rtx", "timing_cache": "t"}, "keeps no timings"),
        ({"timing_cache": __file__}, "is a file, expected a folder"),
        ({"opt_level": 6}, "opt_level is 6, expected 0 to 5"),
        ({"workspace": 0}, "workspace is 0"),
        ({"backend": "onnxruntime"}, "builds no engines: use one of tensorrt, tensorrt-rtx"),
        ({"compute_capabilities": ["ada"]}, "compute capability 'ada'"),
        ({"batch": "1:1:5000"}, "at most 4096 streams"),
    ],
)
def test_options_that_cannot_be_had(folder, stand_in, monkeypatch, options, says):
    stand_in("tensorrt", "__version__ = '11.4'\nclass ILogger:\n    class Severity: pass")
    monkeypatch.setattr(cuda, "devices", lambda: [L4])
    with pytest.raises(InputError) as e:
        build(folder, **options)
    assert says in one_line(e.value)


@needs_rtx
def test_warnings_are_passed_on_but_for_the_expected(folder):
    heard: list[str] = []
    build(folder, "tensorrt-rtx", warn=heard.append)
    assert heard == []  # of 64-bit inputs, which the graphs have on purpose


def test_warnings_come_without_their_wrapping(stand_in):
    code = """
class ILogger:
    class Severity: INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)
    def __init__(self): pass
class Builder:
    def __init__(self, logger):
        logger.log(2, "ModelImporter.cpp:1071: Make sure input input_ids has Int64 binding.")
        logger.log(2, "ModelImporter.cpp:12: something is slow")
        logger.log(3, "told to nobody")
        logger.log(1, "it cannot go on")
        raise TypeError("factory function returned nullptr")
__version__ = "1"
"""
    stand_in(RTX.module, code)
    heard: list[str] = []
    with BuilderProcess(RTX, heard.append) as process, pytest.raises(BuildError, match="it cannot go on"):
        process.parse(Path("none.onnx"))
    assert heard == ["something is slow"]
