"""How a product keeps a weight, and multiplies by it: numbers of a type, or whole numbers by block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from txl_export.number_types import DOMAIN, OPERATOR, WeightFormat

_ROWS = 4096  # that are rounded at once: a softmax may have hundreds of thousands


class Stored(Protocol):
    """A way to keep a weight [n_out, n_in]."""

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """What is kept of it, by name."""
        ...

    def product(self, x: Tensor, kept: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        """[..., n_in] -> [..., n_out] in the type of x, which is the product's."""
        ...


class AsNumbers:
    """In a number type."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Take the type."""
        self.dtype = dtype

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """The weight itself, or a copy where it is of another type."""
        return {"weight": weight if weight.dtype == self.dtype else weight.to(self.dtype)}

    def product(self, x: Tensor, kept: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        """One matrix product."""
        return F.linear(x, kept["weight"], bias)


class InBlocks:
    """In a format of few bits, as `com.microsoft::MatMulNBits` takes it.

    A block of a row is its `scales` times whole numbers from -2^(bits - 1) on; the lowest stands for the block's
    largest magnitude, so a scale may be negative and all numbers but one sign's farthest are used.
    """

    def __init__(self, form: WeightFormat) -> None:
        """Take the format."""
        self.format, self.middle = form, 1 << form.bits - 1

    def tensors(self, weight: Tensor) -> dict[str, Tensor]:
        """`codes` uint8 [n_out, blocks, bytes of a block], those above `middle` positive, and `scales` [n_out, blocks].

        The last block of a row is padded with zeros.
        """
        size = self.format.block_of(weight.shape[1])
        parts = [self._rounded(_blocks(rows.float(), size)) for rows in weight.split(_ROWS)]
        codes, scales = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return {"codes": codes, "scales": scales}

    def _rounded(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        farthest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        scales = farthest / -self.middle
        steps = (blocks / torch.where(scales == 0, 1.0, scales)).round()
        codes = (steps.clamp(-self.middle, self.middle - 1) + self.middle).to(torch.uint8)
        return self._packed(codes), scales[..., 0]

    def _packed(self, codes: Tensor) -> Tensor:
        """Several codes to a byte, the first in its lowest bits."""
        parts = codes.unflatten(-1, (-1, 8 // self.format.bits))
        shifts = torch.arange(0, 8, self.format.bits, dtype=torch.uint8)
        return (parts << shifts).sum(-1, dtype=torch.uint8)

    def weight(self, kept: Mapping[str, Tensor], n_in: int) -> Tensor:
        """The numbers that what is kept stands for, float32 [n_out, n_in]."""
        shifts = torch.arange(0, 8, self.format.bits, dtype=torch.uint8)
        codes = (kept["codes"][..., None] >> shifts & (2 * self.middle - 1)).flatten(-2)
        return ((codes.float() - self.middle) * kept["scales"][..., None]).flatten(1)[:, :n_in]

    def product(self, x: Tensor, kept: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        """As the operator computes it, or the operator itself while a graph is traced."""
        codes, scales = kept["codes"], kept["scales"]
        block = codes.shape[-1] * 8 // self.format.bits
        if torch.onnx.is_in_onnx_export():
            return self._node(x, codes, scales, bias, block)
        return F.linear(self._operand(x, block), self.weight(kept, x.shape[-1]), bias)

    def _operand(self, x: Tensor, block: int) -> Tensor:
        """What the operator multiplies by: x, or x in 8 bits with a scale for each block of a row."""
        if self.format.accuracy_level < 4:
            return x
        blocks = _blocks(x, block)
        scales = blocks.abs().amax(-1, keepdim=True) / 127
        steps = (blocks / torch.where(scales == 0, 1.0, scales)).round()
        return (steps * scales).flatten(-2)[..., : x.shape[-1]]

    def _node(self, x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, block: int) -> Tensor:
        n_out, level = codes.shape[0], self.format.accuracy_level
        attributes: dict[str, Any] = {
            "K": x.shape[-1], "N": n_out, "bits": self.format.bits, "block_size": block, "accuracy_level": level,
        }  # fmt: skip
        inputs = [x, codes, scales] if bias is None else [x, codes, scales, None, None, bias]
        shape = (*x.shape[:-1], n_out)
        node: Tensor = torch.onnx.ops.symbolic(
            f"{DOMAIN}::{OPERATOR}", inputs, attributes, dtype=torch.float32, shape=shape, version=1
        )
        return node


def _blocks(x: Tensor, size: int) -> Tensor:
    """[..., n] -> [..., blocks, size], zeros at the end."""
    return F.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))
