"""Precisions by name: number types that a graph computes in, and formats of few bits that it keeps weights in.

No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class NumberType:
    """A floating-point type.

    Attributes:
        dtype: numpy's name of it (bfloat16 is not numpy's own).
        bytes: per number.
        largest: the largest finite number.
        mantissa: bits after the leading one.
        resolution: what rounding may move a score or logit by, in nats. Operands are rounded too, so a type of
            fewer bits is allowed more: keeping the product alone in fp32 would not buy back what they lost.
    """

    weights_only: ClassVar[bool] = False

    dtype: str
    bytes: int
    largest: float
    mantissa: int
    resolution: float

    def bytes_per_weight(self, n_in: int) -> float:
        """Bytes of a number of a row of n_in."""
        del n_in
        return self.bytes

    def half_unit(self, x: float) -> float:
        """How far rounding moves a number of the size of x at most: half a unit in the last place."""
        return 2.0 ** (math.floor(math.log2(x)) - self.mantissa - 1) if 0 < x < math.inf else 0.0


@dataclass(frozen=True)
class WeightFormat:
    """Weights as whole numbers, in blocks along a row that share a scale; results and all else are float32.

    They are multiplied by ONNX Runtime's own operator `com.microsoft::MatMulNBits`.

    Attributes:
        bits: of a weight.
        block: most numbers that share a scale.
        accuracy_level: the operator's attribute. With 4 it rounds the other operand to 8 bits as well, in blocks of
            the same size that share a scale, and sums whole numbers; with 1 it computes in float32.
    """

    weights_only: ClassVar[bool] = True
    dtype: ClassVar[str] = "float32"  # of results

    bits: int
    block: int
    accuracy_level: int

    def block_of(self, n_in: int) -> int:
        """How many numbers of a row of n_in share a scale: as many as take the fewest bytes, up to `block`.

        The operator takes powers of two from 16 on, and pads the last block of a row.
        """
        sizes = [size for size in _BLOCKS if size <= self.block]
        return min(sizes, key=lambda size: (self._row_bytes(n_in, size), -size))

    def bytes_per_weight(self, n_in: int) -> float:
        """Bytes of a number of a row of n_in, scales and padding included."""
        return self._row_bytes(n_in, self.block_of(n_in)) / n_in

    def _row_bytes(self, n_in: int, size: int) -> int:
        return -(-n_in // size) * (size * self.bits // 8 + _SCALE_BYTES)


DOMAIN, OPERATOR = "com.microsoft", "MatMulNBits"
_BLOCKS = (16, 32, 64, 128, 256)
_SCALE_BYTES = 4

# One line per number type. The largest of each as IEEE 754 and the bfloat16 format define them.
TYPES = {
    "fp32": NumberType("float32", 4, 3.4028234663852886e38, 23, 1 / 64),
    "fp16": NumberType("float16", 2, 65504.0, 10, 1 / 64),
    "bf16": NumberType("bfloat16", 2, 3.3895313892515355e38, 7, 1 / 8),
}
# One line per format. Blocks, and that scales have no offset, as `benchmarks/INT8.md` found them.
FORMATS = {
    "int8": WeightFormat(8, 128, 4),
    "int4": WeightFormat(4, 32, 4),
}
PRECISIONS: dict[str, NumberType | WeightFormat] = {**TYPES, **FORMATS}


def itemsize(dtype: str) -> int:
    """Bytes of a number of one of `TYPES`, by its dtype."""
    return next(t.bytes for t in TYPES.values() if t.dtype == dtype)
