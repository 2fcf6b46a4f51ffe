"""What packages were seen to say, and what is made of it."""

from __future__ import annotations

import pytest

from txl_export.building.messages import cause, explain, remedy

CUDA = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at "
    "/_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient))"
)
MIXED = (
    "Invalid Node - layers.0.attention/mm\nITensor::getDimensions: Error Code 4: API Usage Error "
    "(layers.0.attention/mm: IMatrixMultiplyLayer must have same input types. `A` is of type Float and `B` is of type "
    f"Half. In validateTypes at /_src/optimizer/common/nodes/matrixMultiplyNode.cpp:38)\n{CUDA}"
)
TURING = (
    "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:337: check_turing_op_compatibility] "
    "Cannot compile operation 'layers.0.attention/node_linear' for Turing (SM75): FP32 GEMM is not supported. "
    "In compileGraph at /_src/optimizer/myelin/codeGenerator.cpp:2012)"
)
SEEN = [
    (MIXED, "IMatrixMultiplyLayer must have same input types. `A` is of type Float and `B` is of type Half."),
    (
        'Assertion failed: mode == "linear": Only linear mode is supported for now, got circular',
        "Only linear mode is supported for now, got circular",
    ),
    (
        "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Dynamic input tensor key_00 is missing "
        "dimensions in profile 0. In validate at /_src/optimizer/api/network.cpp:4046)",
        "Dynamic input tensor key_00 is missing dimensions in profile 0.",
    ),
    (
        "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (In ScopedCudaStream at "
        "/_src/common/dispatch/cudaResources.cpp:25 (cudaError 35: CUDA driver version is insufficient))",
        "cudaError 35: CUDA driver version is insufficient",
    ),
    (f"{CUDA}\nsomething else", "something else"),
    ("plain words", "plain words"),
    ("", "it does not say why"),
]


@pytest.mark.parametrize("said, told", SEEN)
def test_the_cause_without_its_wrapping(said, told):
    assert cause([said]).removeprefix("layers.0.attention/mm: ") == told


def test_the_node_and_its_module_are_named():
    assert explain([MIXED], "layers.0.attention/mm", "MatMul").startswith(
        "node layers.0.attention/mm (MatMul) of module layers.0.attention: IMatrixMultiplyLayer must"
    )
    found = explain([TURING])
    assert found.startswith("node layers.0.attention/node_linear of module layers.0.attention: Cannot compile")
    assert found.endswith("FP32 GEMM is not supported.")
    assert explain(["bad"], "MatMul_17", "MatMul") == "node MatMul_17 (MatMul): bad"


@pytest.mark.parametrize(
    "told, says",
    [(TURING, "sm75"), ("no tactics to implement the operation within workspace limit", "--workspace"), ("bad", None)],
)
def test_what_can_be_done_about_it(told, says):
    advice = remedy(told)
    assert (advice is None) if says is None else says in advice
