"""`doctor`: machines with nothing, with everything, and with what is broken; a bundle; text, JSON and exit codes."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from txl_export import doctor
from txl_export.backends import BACKENDS, cuda
from txl_export.bundle import Bundle
from txl_export.cli import main
from txl_export.diagnosis import machine as machines
from txl_export.diagnosis import packages, probe, run
from txl_export.diagnosis.machine import Gpu, Machine
from txl_export.diagnosis.needs import NEEDS
from txl_export.diagnosis.packages import PACKAGES, Found, Package, look_for
from txl_export.errors import BundleError

BARE = Machine("Linux 6 x86_64", "3.12.1", "A CPU", 2, 4, 16 << 30, gpu_problem="no NVIDIA GPU", gpu_remedy="buy one")
H200 = dataclasses.replace(
    BARE, gpus=(Gpu("NVIDIA H200", "sm90", 150 << 30, False),), driver="580.65.06", cuda=(13, 0),
    gpu_problem=None, gpu_remedy=None,
)  # fmt: skip
CPU_ONLY = {"providers": ["CPUExecutionProvider"]}
CUDA = {"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda_provider": None}
LIBRARY = "libcublasLt.so.13: cannot open shared object file: No such file or directory"


def absent(name):
    return Found(name, None, {}, f"package '{name}' is not installed", PACKAGES[name].install)


def present(name, version="13.4", **details):
    return Found(name, version, {name: version}, details=details)


NOTHING = {name: absent(name) for name in PACKAGES}
ALL = {name: present(name) for name in PACKAGES} | {"onnxruntime": present("onnxruntime", "1.31.1", **CUDA)}
CPU = NOTHING | {"onnxruntime": present("onnxruntime", "1.32.0", **CPU_ONLY)}


@pytest.fixture
def on(monkeypatch):
    """on(machine, packages): doctor runs on such a machine, which has a backend for the CUDA provider too."""

    def put(machine, found):
        monkeypatch.setattr(run, "look_at_machine", lambda: machine)
        monkeypatch.setattr(run, "look_for", lambda wanted: {p.name: found[p.name] for p in wanted})
        monkeypatch.setattr(run, "BACKENDS", dict.fromkeys(NEEDS, ""))

    return put


def told(*args, code=0):
    """What the command prints, which ends with that exit code and an error of one line if it is not 0."""
    result = CliRunner().invoke(main, ["doctor", *map(str, args)])
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == (code != 0)
    return result


def section(text, title):
    """The rows of a part of the report by their first words."""
    [part] = [p for p in text.split("\n\n") if p.startswith(title)]
    return {line.strip().partition("  ")[0]: line.strip().partition("  ")[2].strip() for line in part.splitlines()[1:]}


def test_a_machine_with_nothing(on):
    on(BARE, NOTHING)
    result = told(code=3)
    assert section(result.stdout, "This machine") == {
        "system": "Linux 6 x86_64, Python 3.12.1",
        "CPU": "A CPU, 2 cores (4 threads), 17.2 GB of memory",
        "GPU": "no NVIDIA GPU",
    }
    assert section(result.stdout, "Packages") == dict.fromkeys(PACKAGES, "not installed")
    states = section(result.stdout, "Backends")
    assert states["tensorrt"] == states["tensorrt-rtx"] == states["onnxruntime-cuda"] == "no   no NVIDIA GPU"
    assert states["onnxruntime"] == "no   package 'onnxruntime' is not installed"
    assert states["typed"] == states["eager"] == "no   package 'torch' is not installed"
    assert section(result.stdout, "What brings the others") == {
        "tensorrt, tensorrt-rtx, onnxruntime-cuda": "buy one",
        "tensorrt, onnxruntime-cuda": "pip install 'txl-export[gpu]'",
        "tensorrt-rtx": "pip install 'txl-export[tensorrt-rtx]'",
        "onnxruntime": "pip install 'txl-export[cpu]'",
        "typed, eager": "pip install 'txl-export[export]'",
    }
    assert result.stderr == (
        "error: no backend works on this machine: pip install 'txl-export[cpu]' to run bundles on the CPU, "
        "'txl-export[gpu]' on an NVIDIA GPU\n"
    )


def test_a_machine_with_everything(on):
    on(H200, ALL)
    out = told().stdout
    assert section(out, "This machine")["GPU"] == "NVIDIA H200, sm90, 161 GB of memory"
    assert section(out, "This machine")["driver"] == "580.65.06, for CUDA up to 13.0"
    assert section(out, "Packages")["onnxruntime"] == "1.31.1 with CUDA, CPU"
    assert section(out, "Packages")["onnxruntime, CUDA"] == "loads"
    assert section(out, "Backends") == {name: f"yes  {need.runs}" for name, need in NEEDS.items()}
    assert "What brings" not in out


def test_a_cpu_is_enough(on):
    on(BARE, CPU)
    report = doctor()
    assert (report.works, report.bundle, report.taken) == (True, None, None)
    assert [b.name for b in report.backends if b.works] == ["onnxruntime"]
    told()


def state(name, bundle=None):
    return next(b for b in doctor(bundle).backends if b.name == name)


GPU_EXTRA = "pip install 'txl-export[gpu]'"


@pytest.mark.parametrize(
    ("machine", "found", "name", "why", "commands"),
    [
        (H200, CPU, "tensorrt", "package 'tensorrt' is not installed", (GPU_EXTRA,)),
        (H200, CPU, "onnxruntime-cuda", "the onnxruntime that is installed is for CPUs",
         (f"pip uninstall -y onnxruntime && {GPU_EXTRA}",)),
        (H200, NOTHING, "onnxruntime-cuda", "package 'onnxruntime' is not installed", (GPU_EXTRA,)),
        (H200, ALL | {"onnxruntime": present("onnxruntime", **CUDA | {"cuda_provider": LIBRARY})}, "onnxruntime-cuda",
         f"ONNX Runtime's CUDA provider does not load: {LIBRARY}", ("pip install 'onnxruntime-gpu[cuda,cudnn]'",)),
        (H200, ALL | {"onnxruntime": present("onnxruntime", **CUDA | {"cuda_provider": "CUDA failure 46"})},
         "onnxruntime-cuda", "ONNX Runtime's CUDA provider does not load: CUDA failure 46",
         ("run nvidia-smi, which says more",)),
        (BARE, ALL | {"onnxruntime": present("onnxruntime", **CUDA | {"cuda_provider": "CUDA failure 100"})},
         "onnxruntime-cuda", "no NVIDIA GPU", ("buy one",)),
        (dataclasses.replace(H200, cuda=(12, 8)), ALL, "tensorrt",
         "cuda-python is for CUDA 13, the driver runs up to 12.8", ("install a newer NVIDIA driver",)),
        (dataclasses.replace(H200, cuda=(14, 0)), ALL, "tensorrt", "engines, built for this GPU", ()),
        (H200, ALL | {"torch": Found("torch", "2.1", {"torch": "2.1"}, "package 'torch' is broken: x", "again")},
         "eager", "package 'torch' is broken: x", ("again",)),
    ],
)  # fmt: skip
def test_what_stands_in_the_way(on, machine, found, name, why, commands):
    on(machine, found)
    assert (state(name).why, state(name).commands) == (why, commands)


def test_every_backend_has_its_needs():
    assert BACKENDS.keys() <= NEEDS.keys()
    assert {c for need in NEEDS.values() for c in need.conditions} <= {"GPU", "CUDA provider", *PACKAGES}


# With a bundle


@pytest.fixture
def bundle(exported):
    return Bundle.open(exported("stepping", "kv", (1, 8)).path)


def test_which_backends_run_a_bundle(on, monkeypatch, bundle):
    on(H200, ALL)
    monkeypatch.setattr(run, "BACKENDS", BACKENDS)
    monkeypatch.setattr(cuda, "devices", lambda: [cuda.Device("NVIDIA H200", "sm90")])
    out = told(bundle.path).stdout
    assert section(out, f"Backends for {bundle.path}") == {
        "tensorrt": "no   no engines",
        "tensorrt-rtx": "no   no engines",
        "onnxruntime-cuda": "no   onnxruntime without CUDA",
        "onnxruntime": "yes  bundles on the CPU",
        "typed": "no   computes from the checkpoint: only with --backend typed",
        "eager": "no   runs checkpoints",
    }
    assert section(out, "What brings the others") == {
        name: f"txl-export build {bundle.path} --backend {name}" for name in ("tensorrt", "tensorrt-rtx")
    } | {"onnxruntime-cuda": "pip uninstall -y onnxruntime && pip install 'txl-export[gpu]'"}
    assert out.endswith(f"\n{bundle.path} runs on onnxruntime when no backend is named\n")
    assert doctor(bundle).taken == doctor(str(bundle.path)).taken == "onnxruntime"


def test_what_does_not_work_is_not_asked(on, monkeypatch, bundle):
    """Its package could end the process."""
    on(BARE, NOTHING)
    monkeypatch.setattr(run, "refusal", lambda name, bundle: pytest.fail(f"{name} was asked"))
    result = told(bundle.path, code=3)
    assert result.stderr.startswith(
        f"error: no backend runs {bundle.path} on this machine: pip install 'txl-export[cpu]'"
    )


def test_a_backend_that_fails_hides_no_other(on, monkeypatch, bundle):
    on(H200, ALL)

    def refusal(name, bundle):
        if name == "tensorrt":
            raise RuntimeError("a mistake\nof two lines")

    monkeypatch.setattr(run, "refusal", refusal)
    assert (state("tensorrt", bundle).works, state("tensorrt", bundle).why) == (False, "a mistake")
    assert doctor(bundle).taken == "tensorrt-rtx"


def test_what_is_no_bundle(on, tmp_path):
    on(H200, ALL)
    with pytest.raises(BundleError):
        doctor(tmp_path)
    assert told(tmp_path, code=2).stdout == ""


# Text and JSON


def test_json_has_all_of_it(on, bundle):
    on(BARE, NOTHING)
    found = json.loads(told("--json", code=3).stdout)
    assert (found["format"], found["schema"], found["works"], found["bundle"]) == ("txl-export-doctor", 1, False, None)
    assert found["machine"]["memory"] == 16 << 30
    assert [p["name"] for p in found["packages"]] == [*PACKAGES]
    assert found["backends"][3] == {
        "name": "onnxruntime",
        "works": False,
        "why": "package 'onnxruntime' is not installed",
        "commands": ["pip install 'txl-export[cpu]'"],
    }
    on(H200, ALL)
    found = json.loads(told("--json").stdout)
    assert found["machine"]["gpus"] == [
        {"name": "NVIDIA H200", "capability": "sm90", "memory": 150 << 30, "mig": False}
    ]


def test_lines_fit_and_names_are_text(on):
    name = "[b]GPU[/b]\x1b[31m \N{EM DASH} " + "x" * 200
    long = f"package 'torch' is broken: {'y' * 200}"
    gpu = Gpu(name, "sm90", 1 << 30, True)
    on(
        dataclasses.replace(H200, gpus=(gpu,), cpu="[red]CPU\n" + "z" * 200),
        ALL | {"torch": Found("torch", "2.1", {}, long, f"pip install {'w' * 200}")},
    )
    out = told().stdout
    assert "[b]GPU[/b]\\x1b[31m \N{EM DASH} xxx" in out and "[red]CPU\\nzzz" in out
    lines = out.splitlines()
    assert [line for line in lines if len(line) > 100] == [f"  typed, eager  pip install {'w' * 200}"]  # to copy
    assert sum(line.endswith("...") and len(line) == 100 for line in lines) == 5


# Looking at packages


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """modules(name=code): modules that processes find; what looks for each."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def write(**code):
        for name, text in code.items():
            (tmp_path / f"{name}.py").write_text(text)
        return look_for([Package(name, name, "gpu", (f"no-{name}",)) for name in code])

    return write


def test_packages_as_they_come(modules):
    found = modules(
        sound_one="print('{}'); __version__ = '1.2'",
        raising_one="raise OSError('libx.so.1: cannot open\\nmore')",
        aborting_one="import os; os.abort()",
        leaving_one="import os; os._exit(0)",
        exiting_one="import sys; sys.exit('no')",
        needing_one="import needed_by_it",
    )
    assert found["sound_one"] == Found("sound_one", "1.2")
    assert {n: f.problem and f.problem.partition(": ")[2] for n, f in found.items()} == {
        "sound_one": None,
        "raising_one": "libx.so.1: cannot open",
        "aborting_one": "importing it ends the process with signal 6 (SIGABRT)",
        "leaving_one": "importing it ends the process with exit code 0",
        "exiting_one": "it raises SystemExit",
        "needing_one": "No module named 'needed_by_it'",
    }
    assert found["raising_one"].command == "pip install --force-reinstall raising_one"


def test_absent_packages(modules):
    wanted = [Package("a", "no_such_module", "gpu", ()), Package("b", "json.no_such_module", "cpu", ("numpy",))]
    a, b = look_for(wanted).values()
    assert (a.version, a.problem, a.command) == (None, "package 'a' is not installed", "pip install 'txl-export[gpu]'")
    assert (b.version, b.distributions) == (None, {"numpy": np.__version__})


def test_an_import_that_does_not_end(modules, monkeypatch):
    monkeypatch.setattr(packages, "TIMEOUT", 0.5)
    found = modules(waiting_one="import threading; threading.Event().wait()")
    assert found["waiting_one"].problem == "package 'waiting_one' is broken: importing it does not end within 0 s"


ONNXRUNTIME = """
import os
__version__ = "1.31.1"
def preload_dlls(): print("preloaded")
def get_available_providers(): return ["CUDAExecutionProvider", "CPUExecutionProvider"]
class InferenceSession:
    def __init__(self, model, providers):
        os.write(2, {log!r})
    def get_providers(self):
        return {providers!r}
"""
LOG = b"""[1;31m2026 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] provider_bridge_ort.cc:2043
ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_cuda.so with \
error: libcublasLt.so.13: cannot open shared object file: No such file or directory
[m
[W:onnxruntime:Default] Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 13.*. Please install all
"""


@pytest.mark.parametrize(
    ("providers", "log", "says"),
    [
        (["CPUExecutionProvider"], LOG, LIBRARY),
        (["CPUExecutionProvider"], LOG[LOG.index(b"[W") :], "Require cuDNN 9.* and CUDA 13.*."),
        (["CPUExecutionProvider"], b"CUDA failure 100: no device ; GPU=-1 ; hostname=h", "CUDA failure 100: no device"),
        (["CPUExecutionProvider"], b"", "it is left out without a reason"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], LOG, None),
    ],
)
def test_the_cuda_provider_is_tried(modules, providers, log, says):
    found = modules(onnxruntime=ONNXRUNTIME.format(providers=providers, log=log))["onnxruntime"]
    assert (found.version, found.details["cuda_provider"]) == ("1.31.1", says)


def test_the_graph_that_it_is_tried_with_runs():
    import onnxruntime as ort

    session = ort.InferenceSession(probe._IDENTITY, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": np.array([3], np.float32)})[0], [3])


def test_nothing_heavy_is_imported_for_it():
    code = "import sys, txl_export.diagnosis as d; print({'torch', 'onnx', 'onnxruntime', 'tensorrt'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# Looking at the machine


class Driver:
    """The driver's library with two GPUs, one of them a part."""

    NAMES = (b"NVIDIA H200", b"NVIDIA H200 MIG 1g.18gb")

    def __init__(self, status=0, count=2):
        self.status, self.count = status, count

    def cuDriverGetVersion(self, version):
        version._obj.value = 13010

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, handle, n):
        handle._obj.value = n

    def cuDeviceGetName(self, buffer, size, handle):
        ctypes.memmove(buffer, self.NAMES[handle.value], len(self.NAMES[handle.value]))

    def cuDeviceGetAttribute(self, value, attribute, handle):
        value._obj.value = {75: 9, 76: 0}[attribute]

    def cuDeviceTotalMem_v2(self, size, handle):
        size._obj.value = (150 << 30, 18 << 30)[handle.value]

    def cuGetErrorName(self, status, name):
        name._obj.value = {100: b"CUDA_ERROR_NO_DEVICE"}.get(status)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """driver(library or None): the machine as it is seen with such a driver."""
    monkeypatch.setattr(machines, "_PCI", tmp_path / "pci")
    monkeypatch.setattr(machines, "_DRIVER_VERSION", tmp_path / "version")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices, asked = cuda.devices, cuda.driver

    def look(library):
        def load(name):
            if library is None:
                raise OSError(name)
            return library

        monkeypatch.setattr(cuda, "devices", lambda: devices(load))
        monkeypatch.setattr(cuda, "driver", lambda: asked(load))
        return machines.look_at_machine()

    return look


def test_gpus_of_the_driver(driver, tmp_path):
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\nGCC 12.3\n"
    )
    found = driver(Driver())
    assert found.gpus == (
        Gpu("NVIDIA H200", "sm90", 150 << 30, False),
        Gpu("NVIDIA H200 MIG 1g.18gb", "sm90", 18 << 30, True),
    )
    assert (found.driver, found.cuda, found.gpu_problem, found.gpu_remedy) == ("580.65.06", (13, 1), None, None)
    assert found.memory and found.memory > 1 << 20 and found.cores >= 1 and found.system.count(" ") == 2


def test_no_gpu_no_driver(driver):
    found = driver(None)
    assert (found.gpus, found.driver, found.cuda) == ((), None, None)
    assert (found.gpu_problem, found.gpu_remedy) == ("no NVIDIA GPU", "a machine with an NVIDIA GPU")


@pytest.mark.parametrize(("vendor", "kind", "seen"), [
    ("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x1002", "0x030000", False),
])  # fmt: skip
def test_a_card_without_a_driver(driver, tmp_path, vendor, kind, seen):
    (tmp_path / "pci" / "0000:01:00.0").mkdir(parents=True)
    for name, value in (("vendor", vendor), ("class", kind)):
        (tmp_path / "pci" / "0000:01:00.0" / name).write_text(value + "\n")
    assert (driver(None).gpu_problem == "an NVIDIA GPU without a driver") == seen


@pytest.mark.parametrize(
    ("library", "hidden", "why"),
    [
        (Driver(100), None, "CUDA_ERROR_NO_DEVICE"),
        (Driver(999), None, "CUDA error 999"),
        (Driver(count=0), None, "it has none"),
        (Driver(100), "", "CUDA_ERROR_NO_DEVICE, CUDA_VISIBLE_DEVICES is ''"),
    ],
)
def test_a_driver_that_shows_no_gpu(driver, monkeypatch, library, hidden, why):
    if hidden is not None:
        monkeypatch.setattr(machines.os, "environ", {**machines.os.environ, "CUDA_VISIBLE_DEVICES": hidden})
    found = driver(library)
    assert (found.gpus, found.cuda, found.gpu_problem) == ((), (13, 1), f"the NVIDIA driver shows no GPU ({why})")
