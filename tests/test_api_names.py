"""Names and parameters of packages that need a GPU: those that are used are those that the genuine packages have."""

from __future__ import annotations

from pathlib import Path

import pytest

import txl_export
from tests.api import cuda_uses
from tests.api.listed import OF_RTX, committed, installed
from tests.api.tables import MODULE
from tests.api.take import parameters, take
from tests.api.uses import Reader, Use, untyped

PACKAGE = Path(txl_export.__file__).parent
FILES = [
    *(PACKAGE / "building" / name for name in ("native.py", "callbacks.py")),
    PACKAGE / "backends" / "tensorrt.py",
    *sorted((PACKAGE / "backends" / "device").glob("*.py")),
]
# What TensorRT-RTX alone has: used with it only.
RTX_ONLY = {
    (MODULE, "ComputeCapability"),
    ("ComputeCapability", "__members__"),
    ("IBuilderConfig", "num_compute_capabilities"),
    ("IBuilderConfig", "set_compute_capability"),
}


def used() -> list[Use]:
    """All that the package's files use of TensorRT."""
    readers = [Reader(file, untyped(FILES)) for file in FILES]
    assert [line for reader in readers for line in reader.unknown] == []
    assert committed().lost([stray for reader in readers for stray in reader.strays], own=()) == []
    return [use for reader in readers for use in reader.uses]


def test_tensorrt_has_all_that_is_used():
    uses, genuine = used(), committed()
    assert genuine.version == "11.4.0.106"
    wrong = [genuine.problem(u) for u in uses if (u.owner, u.member) not in RTX_ONLY]
    assert [w for w in wrong if w] == []
    names = {(u.owner, u.member) for u in uses}
    assert {("IExecutionContext", "execute_async_v3"), ("OnnxParser", "parse"), ("ILogger", "log")} <= names
    assert names >= RTX_ONLY, "what is not used any more"


def test_no_other_file_uses_tensorrt():
    others = [Reader(file) for file in PACKAGE.rglob("*.py") if file not in FILES]
    strays = [stray for reader in others for stray in reader.strays]
    assert committed().lost(strays, own={"infer_shapes"}) == []  # onnx has one too


def test_tensorrt_rtx_has_all_that_is_used():
    genuine = installed(pytest.importorskip("tensorrt_rtx"))
    assert [w for u in used() if (w := genuine.problem(u))] == []


# CUDA


def test_cuda_python_has_all_that_is_used():
    genuine = pytest.importorskip("cuda.bindings.runtime")
    files = sorted(PACKAGE.rglob("*.py"))
    assert [line for file in files for line in cuda_uses.problems(file, genuine)] == []
    assert "cudaGraphLaunch" in set().union(*map(cuda_uses.names, files))


# What these tests stand on


WRONG = """
class Context:
    def __init__(self, trt: Any, engine: Any):
        self._context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.MANAGED)
        self._context.set_tensor_addres("x", 1)
        self._context.set_tensor_address("x", 1, 2)
        self._asked("run", self._context.execute_async_v3, 1, 2)
        self._context.set_tensor_address(name="x", address=1)
        engine.num_bindings, trt.init_libnvinfer_plugin, trt.Runtime(), getattr(engine, "num_io_tensor")
        odd: Any = engine
        self.other = engine.create_execution_context()
        dict(x=engine)["x"].num_io_tensors
"""


def test_a_wrong_name_is_found_however_it_is_used(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    reader, genuine = Reader(tmp_path / "wrong.py"), committed()
    wrong = [w for u in reader.uses if (w := genuine.problem(u))]
    lines = [4, 5, 6, 7, 8, 9, 9, 9, 9]
    assert [int(w.split(":")[1]) for w in wrong] == lines
    assert [line.split(" is Any")[0] for line in reader.unknown] == ["wrong.py:10: odd", "wrong.py:11: other"]
    assert genuine.lost(reader.strays, own=()) == ["wrong.py:12: what has num_io_tensors?"]


WRONG_CUDA = """
api.cudaMallok(8), api.cudaMalloc(8, 9), self._call("cudaFree"), self._call("cudaFre", 1)
api.cudaError_t.cudaSucces, Owned(handle, api.cudaEventRecord), api.cudaStreamNonBlock
"""


def test_a_wrong_name_of_cuda_is_found(tmp_path):
    genuine = pytest.importorskip("cuda.bindings.runtime")
    (tmp_path / "wrong.py").write_text(WRONG_CUDA)
    wrong = " ".join(cuda_uses.problems(tmp_path / "wrong.py", genuine))
    assert wrong.count("wrong.py") == 7
    for told in ("no cudaMallok", "cudaMalloc is given 2", "cudaFree is given 0", "no cudaFre ", "no cudaSucces"):
        assert told in f"{wrong} "
    assert "cudaEventRecord is given 1" in wrong and "no cudaStreamNonBlock" in wrong


def test_a_listing_is_read():
    lines = [
        "1.0\n",
        "ENUM E ['A']\n",
        "CLASS C\n",
        "    f :: f(self: C, a: dict[str, int], b: E = <E.A: 0>) -> bool\n",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.api.take.CLASSES", ("C",))
        patch.setattr("tests.api.take.ENUMS", ("E",))
        found = take([*lines, "    p :: \n", "    g :: g(*args, **kwargs)\n", "FUNCS ['h']\n"])
    assert found["classes"] == {"C": {"f": ["a", "b="], "p": None, "g": None}}
    assert (found["version"], found["enums"], found["functions"]) == ("1.0", {"E": ["A"]}, ["h"])
    assert parameters("f(self: C) -> None", "f") == [] and OF_RTX[0] not in committed().enums
