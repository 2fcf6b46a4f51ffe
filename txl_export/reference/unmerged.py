"""Adapters beside the weights, as they are trained: W x + scale * B (A x), computed and not merged.

What merged weights are judged by (`txl_export.checkpoints.adapters`). Nothing here adds matrices, but for the
lengths that DoRA divides by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from txl_export.checkpoints.adapters.updates import Update
from txl_export.reference.model import TransformerXL

Linear = Callable[[Tensor], Tensor]


class Unmerged(TorchFunctionMode):
    """Within the block every product and look-up of an adapted matrix is followed by its adapters."""

    def __init__(self, model: TransformerXL, updates: Mapping[str, Sequence[Update]]) -> None:
        """Take a model of the weights without adapters, and the adapters by the names of its parameters."""
        super().__init__()
        parameters = dict(model.named_parameters())
        self._updates = {id(parameters[name]): _Stack(parameters[name], listed) for name, listed in updates.items()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, adapted where its second argument is an adapted matrix."""
        stack = self._updates.get(id(args[1])) if len(args) > 1 and func in (F.linear, F.embedding) else None
        if stack is None:
            return func(*args, **(kwargs or {}))
        if func is F.embedding:
            return stack.rows(args[0])
        out = stack.product(args[0])
        return out if len(args) < 3 or args[2] is None else out + args[2]


class _Stack:
    """A matrix and its adapters, in their order."""

    def __init__(self, weight: Tensor, updates: Sequence[Update]) -> None:
        self.weight, self.parts = weight, []
        rescales = any(update.magnitude is not None for update in updates)
        before = weight.detach()  # what the next adapter is added to; only lengths are taken of it
        for update in updates:
            up, down = _tensor(update.up, weight), _tensor(update.down, weight)
            before = before + update.scale * up @ down if rescales else before
            factor = None if update.magnitude is None else _factor(before, update)
            if factor is not None:
                before = before * (factor if update.of_columns else factor[:, None])
            bias = None if update.bias is None else update.scale * _tensor(update.bias, weight)
            self.parts.append((up, down, update.scale, factor, bias))

    def product(self, x: Tensor) -> Tensor:
        """[..., columns] -> [..., rows], without the matrix's own bias."""
        out = F.linear(x, self.weight)
        for up, down, scale, factor, bias in self.parts:
            out = out + scale * F.linear(F.linear(x, down), up)
            out = out if factor is None else out * factor
            out = out if bias is None else out + bias
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """[...] -> [..., columns]."""
        out = F.embedding(ids, self.weight)
        for up, down, scale, factor, _ in self.parts:
            out = out + scale * (F.embedding(ids, up) @ down)
            out = out if factor is None else out * factor
        return out


def _factor(weight: Tensor, update: Update) -> Tensor:
    """What DoRA multiplies rows or columns by, so that they get the trained lengths."""
    assert update.magnitude is not None
    return _tensor(update.magnitude, weight) / weight.norm(dim=0 if update.of_columns else 1)


def _tensor(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like)
