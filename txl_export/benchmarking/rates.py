"""How fast this machine reads and multiplies at all; a program that prints it as JSON, for a number of threads.

Reading is repeated over arrays of several sizes, since one that fits a cache is read faster. Each size and
each matrix product is tried with everything that is installed, and the fastest counts: a limit that a backend
could beat is none.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.benchmarking.serving import settle

READ_MB = (4, 16, 64, 256, 1024)
MATMUL_SIZES = (512, 1024, 2048)
REPEATS, REPEAT_SECONDS = 5, 0.1  # of each measurement, whichever is more
_MEMINFO = Path("/proc/meminfo")

Call = Callable[[], Any]


def read_rates(nbytes: int, threads: int) -> dict[str, float]:
    """Bytes per second of every way to read an array of float32 once, medians."""
    x = np.ones(nbytes // 4, np.float32)  # written, so that it has pages of its own
    return _rates(x.nbytes, ((name, partial(make, x, threads)) for name, make in _READERS.items()))


def matmul_rates(n: int, threads: int) -> dict[str, float]:
    """FLOPs per second of every way to multiply two n x n matrices of float32, medians."""
    a = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
    return _rates(2 * n**3, ((name, partial(make, a, threads)) for name, make in _MATMULS.items()))


def _rates(work: int, ways: Iterator[tuple[str, Callable[[], Call]]]) -> dict[str, float]:
    found = {}
    for name, make in ways:
        if importlib.util.find_spec(name.partition(" ")[0]):
            found[name] = work / _median_seconds(make())
    return found


def _median_seconds(call: Call) -> float:
    call()
    settle()
    taken: list[float] = []
    end = time.perf_counter() + REPEAT_SECONDS
    while len(taken) < REPEATS or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def _numpy_max(x: np.ndarray, _threads: int) -> Call:
    return x.max


def _numpy_threads(x: np.ndarray, threads: int) -> Call:
    pool, parts = ThreadPoolExecutor(threads), np.array_split(x, threads)
    return lambda: list(pool.map(np.max, parts))


def _numpy_matvec(x: np.ndarray, _threads: int) -> Call:  # numpy has its threads from the environment
    matrix = _as_matrix(x)
    vector = np.ones(matrix.shape[1], np.float32)
    return lambda: matrix @ vector


def _torch_sum(x: np.ndarray, threads: int) -> Call:
    return _torch(threads).from_numpy(x).sum


def _torch_matvec(x: np.ndarray, threads: int) -> Call:
    torch = _torch(threads)
    matrix = torch.from_numpy(_as_matrix(x))
    return partial(torch.mv, matrix, torch.ones(matrix.shape[1]))


def _onnxruntime_matvec(x: np.ndarray, threads: int) -> Call:
    matrix = _as_matrix(x)
    return _onnxruntime_product(np.ones((1, matrix.shape[0]), np.float32), matrix, threads)


def _as_matrix(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, min(1024, x.size))


def _numpy_matmul(a: np.ndarray, _threads: int) -> Call:
    out = np.empty_like(a)
    return lambda: np.matmul(a, a, out=out)


def _torch_matmul(a: np.ndarray, threads: int) -> Call:
    torch = _torch(threads)
    tensor = torch.from_numpy(a)
    return partial(torch.mm, tensor, tensor, out=torch.empty_like(tensor))


def _onnxruntime_matmul(a: np.ndarray, threads: int) -> Call:
    return _onnxruntime_product(a, a, threads)


# One line per way; the first word is the package.
_READERS: dict[str, Callable[[np.ndarray, int], Call]] = {
    "numpy max": _numpy_max,
    "numpy max in threads": _numpy_threads,
    "numpy matrix times vector": _numpy_matvec,
    "torch sum": _torch_sum,
    "torch matrix times vector": _torch_matvec,
    "onnxruntime vector times matrix": _onnxruntime_matvec,
}
_MATMULS: dict[str, Callable[[np.ndarray, int], Call]] = {
    "numpy": _numpy_matmul,
    "torch": _torch_matmul,
    "onnxruntime": _onnxruntime_matmul,
}


def _torch(threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    return torch


def _onnxruntime_product(a: np.ndarray, b: np.ndarray, threads: int) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(_product_model(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    for name, array in (("a", a), ("b", b)):
        binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    binding.bind_output("c", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def run() -> np.ndarray:
        session.run_with_iobinding(binding)
        assert a.size and b.size  # they live as long as the binding, which knows only their addresses
        return out

    return run


def _product_model() -> bytes:
    """An ONNX model of c = a b for matrices of any size, written by hand: package onnx may be missing."""
    float32, ir_version, opset = 1, 8, 13

    def value(name: str) -> bytes:
        shape = b"".join(_field(1, _field(2, f"{name}{axis}".encode())) for axis in range(2))
        return _field(1, name.encode()) + _field(2, _field(1, _field(1, float32) + _field(2, shape)))

    node = _field(1, b"a") + _field(1, b"b") + _field(2, b"c") + _field(4, b"MatMul")
    inputs = _field(11, value("a")) + _field(11, value("b"))
    graph = _field(1, node) + _field(2, b"product") + inputs + _field(12, value("c"))
    return _field(1, ir_version) + _field(7, graph) + _field(8, _field(2, opset))


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: a small number, or bytes after their length."""
    if isinstance(value, int):
        return bytes([number << 3]) + _varint(value)
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _best(rates: Mapping[str, float], size: str, n: int, unit: str) -> dict[str, Any]:
    by = max(rates, key=lambda name: rates[name])
    return {size: n, f"{unit}_per_second": rates[by], "by": by, "all": dict(rates)}


def _free_bytes() -> float:
    """Memory that may be taken; unlimited where the system does not tell."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf


def main(threads: int) -> dict[str, Any]:
    """Measure in this process; arrays take a quarter of the free memory at most."""
    sizes = [mb << 20 for mb in READ_MB]
    sizes = [n for n in sizes if n <= _free_bytes() / 4] or sizes[:1]
    return {
        "threads": threads,
        "read": [_best(read_rates(n, threads), "bytes", n, "bytes") for n in sizes],
        "matmul": [_best(matmul_rates(n, threads), "size", n, "flops") for n in MATMUL_SIZES],
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
