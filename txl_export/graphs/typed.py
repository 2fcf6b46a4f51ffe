"""Products of known type: what a graph multiplies, each in the precision that the policy gives its name."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from txl_export.graphs.stored import AsNumbers, InBlocks, Stored
from txl_export.number_types import WeightFormat
from txl_export.precision import JOINTS, LAYER_PRODUCTS, MEMORY, PrecisionPolicy

M = TypeVar("M", bound=nn.Module)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """X in another type; x itself where it has that type, so that no graph holds a cast to what a tensor is."""
    return x if x.dtype == dtype else x.to(dtype)


def in_type(module: M, dtype: torch.dtype) -> M:
    """A module with its numbers in another type; the module itself where they are."""
    if all(t.dtype == dtype for t in (*module.parameters(), *module.buffers())):
        return module
    return copy.deepcopy(module).to(dtype)


class Types:
    """The torch types of a policy, for a layer's names ("W_o") or for those outside of layers ("logits")."""

    def __init__(self, policy: PrecisionPolicy, layer: int | None = None) -> None:
        """Take a policy and the number of a layer."""
        self._policy, self._layer = policy, layer

    def full_name(self, name: str) -> str:
        """The policy's name of one of this layer's products."""
        return name if self._layer is None or name not in LAYER_PRODUCTS else f"layers.{self._layer}.{name}"

    def __call__(self, name: str) -> torch.dtype:
        """The type of a product, of a joint (`txl_export.precision.JOINTS`) or of the memory."""
        found: torch.dtype = getattr(torch, self._policy.dtype(self.full_name(name)))
        return found

    def format(self, name: str) -> WeightFormat | None:
        """The format of few bits that the weights of a product are kept in; None for numbers of its type."""
        return self._policy.format(self.full_name(name))

    def stored(self, name: str) -> Stored:
        """How the weights of a product are kept."""
        form = self.format(name)
        return AsNumbers(self(name)) if form is None else InBlocks(form)

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for layers that have the same types and formats, and so the same graph."""
        return tuple(self._policy.of(self.full_name(name)) for name in (*LAYER_PRODUCTS, *JOINTS, MEMORY))


class Product(nn.Module):
    """A product with a name and a type; calibration watches what goes into it and what comes out."""

    def __init__(self, types: Types, name: str) -> None:
        """Take the types of a layer (or of the whole) and the product's name there."""
        super().__init__()
        self.name, self.dtype = types.full_name(name), types(name)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix product of two tensors, in the product's type."""
        return cast(a, self.dtype) @ cast(b, self.dtype)


class Linear(Product):
    """A product with a weight of the model.

    Attributes:
        flat: multiply [B * L, n_in], for which ONNX has an operator with the bias in it that takes the weight as it
            is: runtimes fuse it with what follows.
    """

    bias: Tensor | None
    flat: bool = False

    def __init__(self, types: Types, name: str, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take a weight [n_out, n_in], kept as the policy has it, and a bias [n_out] in the product's type."""
        super().__init__(types, name)
        self.stored = types.stored(name)
        kept = self.stored.tensors(weight.detach())
        self._names = tuple(kept)
        for key, tensor in kept.items():
            self.register_buffer(key, tensor)
        self.register_buffer("bias", None if bias is None else cast(bias.detach(), self.dtype))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """[..., n_in] -> [..., n_out] in the product's type."""
        kept = {name: self.get_buffer(name) for name in self._names}
        x = cast(x, self.dtype)
        if not self.flat or x.dim() == 2:
            return self.stored.product(x, kept, self.bias)
        rows = self.stored.product(x.flatten(0, -2), kept, self.bias)
        return rows.reshape(-1, *x.shape[1:-1], rows.shape[-1])


class Norm(nn.Module):
    """A LayerNorm in a type of its own: the sum of squares of a large stream exceeds what a half precision holds."""

    def __init__(self, types: Types, norm: nn.LayerNorm) -> None:
        """Take the reference's."""
        super().__init__()
        self.norm, self.dtype = in_type(norm, types("norm")), types("norm")

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] -> the same shape, in the type of norms."""
        normed: Tensor = self.norm(cast(x, self.dtype))
        return normed
