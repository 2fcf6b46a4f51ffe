"""Backend `typed`: the module that a bundle's graphs were traced from, in PyTorch and in the bundle's precision.

ONNX Runtime's CPU provider computes half graphs in fp32 inside, so what it gives says nothing about rounding and
overflow in half. PyTorch rounds every result to the tensor's type, on a CPU too: this backend shows what half
precision does to a model. It needs the checkpoint that the bundle was exported from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txl_export.backends.base import RUNS_BUNDLES, Arrays, LoadedModel, Streams, bundle_info, check_request, rows_of
from txl_export.backends.ring import RingSizes, RingStreams, with_mem_len
from txl_export.bundle import Bundle
from txl_export.calls import Call
from txl_export.checkpoints.base import Checkpoint
from txl_export.errors import InputError, missing_extra

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("torch", "export", "backend 'typed'") from None

from txl_export.cost import FLOAT, position_rows
from txl_export.graphs.calibration import first_states
from txl_export.graphs.model import SegmentGraph
from txl_export.judge import judge_of
from txl_export.reference import TransformerXL
from txl_export.room import SMALLER, require_room, the_memory

POSITIONS = "positions"


def refuses(source: Bundle | Checkpoint) -> str | None:
    """Bundles say which types to compute in. It runs none of their files, so it stands in for what nothing here runs.

    In place of graphs that would run elsewhere it has to be asked for: who deploys or verifies them means those.
    """
    if not isinstance(source, Bundle):
        return RUNS_BUNDLES
    if source.manifest.precision != "bf16":
        return "computes from the checkpoint: only with --backend typed"
    if source.judge is None and source.judge_path is None and source.manifest.random is None:
        return "computes from the checkpoint, which is not there"
    return None


def load(
    source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
) -> LoadedModel:
    """Load a bundle's module with the weights of its checkpoint.

    Raises:
        InputError: a checkpoint instead of a bundle, another M than the bundle's, or no checkpoint to be found.
    """
    if not isinstance(source, Bundle):
        raise InputError("backend 'typed' runs the types of a bundle, this is a checkpoint: export it first")
    cut = check_request(source.manifest, mem_len, segment_len)
    if threads:
        torch.set_num_threads(threads)
    return TypedModel(source, cut, mem_len)


class TypedModel(LoadedModel):
    """A bundle's module."""

    name = "typed"
    notes = ("backend typed computes from the checkpoint in the bundle's types: it runs no file of the bundle",)

    def __init__(self, bundle: Bundle, segment_len: int, mem_len: int | None = None) -> None:
        """Load the checkpoint and put its weights into the bundle's types."""
        checkpoint, _ = judge_of(bundle)
        self.manifest = bundle.manifest
        self.reference = TransformerXL.from_checkpoint(checkpoint)
        m = self.manifest
        tables = m.config.n_layer * m.config.n_head * m.config.d_head * position_rows(m.config, m.mem_len, m.reach)
        require_room(FLOAT * tables, f"a bundle of mem_len {m.mem_len:,}", SMALLER)
        self.module = SegmentGraph(self.reference, self.manifest)
        self.sizes = RingSizes.of(bundle) if m.traits.in_place else None
        self.info = with_mem_len(bundle_info(bundle, segment_len), mem_len)

    def streams(self, batch_size: int, mem_len: int | None = None) -> Streams:
        """Memory for `batch_size` streams, at their start."""
        if self.sizes:
            return TypedRing(self, self.sizes, batch_size, mem_len)
        return TypedStreams(self, batch_size)


class TypedRing(RingStreams):
    """Memory of B streams that calls write in place."""

    def __init__(self, model: TypedModel, sizes: RingSizes, batch_size: int, mem_len: int | None = None) -> None:
        """Start all streams."""
        super().__init__(with_mem_len(model.info, mem_len), sizes, batch_size)
        self.model = model

    def run(
        self,
        ids: np.ndarray,
        head: str,
        targets: np.ndarray | None,
        outputs: Sequence[np.ndarray],
        visible_from: np.ndarray,
    ) -> None:
        """Run one call in the bundle's types."""
        layers: list[list[Tensor]] = [[] for _ in self.model.module.layers]
        for array, spec in zip(self.buffer, self.sizes.states, strict=True):
            layers[spec.layer].append(torch.from_numpy(array).to(getattr(torch, spec.dtype)))
        given = [torch.from_numpy(a) for a in (ids, self.ring.positions, visible_from, self.window)]
        asked = None if targets is None else torch.from_numpy(targets)
        with torch.inference_mode():
            answers, _, states = self.model.module(head, *given[:2], layers, asked, given[2:])
        for array, tensor in zip(outputs, answers, strict=True):
            array[...] = tensor.numpy()
        for array, tensor in zip(self.buffer, (t for layer in states for t in layer), strict=True):
            array[...] = tensor.to(torch.float32).numpy()


class TypedStreams(Streams):
    """Memory of B streams as tensors; a call makes new ones."""

    def __init__(self, model: TypedModel, batch_size: int) -> None:
        """Start all streams."""
        self.model, self.info, self.batch_size = model, model.info, batch_size
        m = model.manifest
        require_room(batch_size * sum(s.nbytes for s in m.states), *the_memory(m.mem_len, batch_size))
        self._first = first_states(model.reference, model.manifest, 1)
        self._states = [[t.repeat(batch_size, *[1] * (t.ndim - 1)) for t in layer] for layer in self._first]
        self._positions = torch.full((batch_size,), model.info.start)
        self._kept: tuple[list[list[Tensor]], Tensor] | None = None

    def call(
        self, ids: np.ndarray, head: str, targets: np.ndarray | None, outputs: Sequence[np.ndarray], call: Call
    ) -> None:
        """Run one segment in the bundle's types."""
        del call  # all streams advance by all of it
        asked = None if targets is None else torch.from_numpy(targets)
        with torch.inference_mode():
            answers, positions, states = self.model.module(
                head, torch.from_numpy(ids), self._positions, self._states, asked
            )
        for array, tensor in zip(outputs, answers, strict=True):
            array[...] = tensor.numpy()
        self._positions, self._states = positions, states

    def begin(self) -> None:
        """Remember the present state."""
        self._kept = (self._states, self._positions)

    def commit(self) -> None:
        """Forget the remembered state."""
        self._kept = None

    def rollback(self) -> None:
        """Return to the remembered state."""
        if self._kept is not None:
            (self._states, self._positions), self._kept = self._kept, None

    def reset(self, streams: np.ndarray) -> None:
        """Give some streams the first rows and position."""
        rows = torch.from_numpy(streams)
        self._states = [
            [_with_rows(t, rows, first) for t, first in zip(layer, fresh, strict=True)]
            for layer, fresh in zip(self._states, self._first, strict=True)
        ]
        self._positions = _with_rows(self._positions, rows, torch.tensor(self.model.info.start))

    @property
    def positions(self) -> np.ndarray:
        """Graph position of each stream, int64 [B]."""
        return self._positions.numpy().copy()

    def state(self) -> Arrays:
        """Copies of memory and positions, in the graph's types where numpy has them, else in float32."""
        flat = zip(self.model.manifest.states, (t for layer in self._states for t in layer), strict=True)
        return {s.input: _numpy(t) for s, t in flat} | {POSITIONS: self.positions}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy memory and positions in."""
        names = iter(s.input for s in self.model.manifest.states)
        self._states = [
            [torch.from_numpy(np.ascontiguousarray(state[next(names)])).to(t.dtype, copy=True) for t in layer]
            for layer in self._states
        ]
        self._positions = torch.from_numpy(state[POSITIONS].copy())

    def memory(self, stream: int) -> list[Arrays]:
        """Per layer the rows that count, oldest first."""
        return rows_of(self.model.info, self.model.manifest.states, self.state(), stream)


def _with_rows(t: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    changed = t.clone()
    changed[rows] = new
    return changed


def _numpy(t: Tensor) -> np.ndarray:
    exact = t.float() if t.dtype == torch.bfloat16 else t
    array: np.ndarray = exact.numpy().copy()
    return array
