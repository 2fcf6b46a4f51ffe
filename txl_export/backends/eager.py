"""Backend `eager`: the PyTorch reference behind the same session API, as the judge of all others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from txl_export.backends.base import RUNS_CHECKPOINTS, Arrays, LoadedModel, ModelInfo, Streams, identity
from txl_export.bundle import Bundle
from txl_export.calls import Call
from txl_export.checkpoints.base import Checkpoint
from txl_export.errors import InputError, missing_extra
from txl_export.layouts import memory_bytes
from txl_export.room import require_room, the_memory
from txl_export.segments import SegmentRange

try:
    import torch
    from torch import Tensor
except ImportError:
    raise missing_extra("torch", "export", "backend 'eager'") from None

from txl_export.reference import Memory, TransformerXL

SEGMENT_LEN = 64  # as the longest segment of a default export
TOP_K = 40
MAX_BATCH = 1 << 20


def refuses(source: Bundle | Checkpoint) -> str | None:
    """Only checkpoints hold a model to run eagerly."""
    return None if isinstance(source, Checkpoint) else RUNS_CHECKPOINTS


def load(
    source: Any, mem_len: int | None = None, segment_len: int | None = None, threads: int | None = None
) -> LoadedModel:
    """Load a checkpoint's reference model, in float32."""
    if not isinstance(source, Checkpoint):
        raise InputError("backend 'eager' runs checkpoints, this is a bundle: give its checkpoint")
    if threads:
        torch.set_num_threads(threads)
    return EagerModel(source, mem_len, segment_len or SEGMENT_LEN)


class EagerModel(LoadedModel):
    """The reference model, asked like an engine."""

    name = "eager"

    def __init__(self, checkpoint: Checkpoint, mem_len: int | None, segment_len: int, top_k: int = TOP_K) -> None:
        """Make the model of a checkpoint; M and the cut may differ from what it stores."""
        config = checkpoint.config
        M = config.mem_len if mem_len is None else mem_len
        if M < 0:
            raise InputError(f"mem_len is {M}, expected 0 or more tokens")
        if segment_len < 1:
            raise InputError(f"segment_len is {segment_len}, expected 1 or more tokens")
        checkpoint.dialect.window(config, M)
        self.model = TransformerXL.from_checkpoint(replace(checkpoint, config=replace(config, mem_len=M)))
        self.info = ModelInfo(
            config=config,
            dialect=checkpoint.dialect,
            layout="hidden",
            mem_len=M,
            segment_len=segment_len,
            segments=(SegmentRange(1, 1 << 31),),
            heads=("log_probs", *(h for h in HEADS if h != "log_probs"), *(f"{h}@last" for h in HEADS)),
            top_k=min(top_k, config.vocab_size),
            max_batch=MAX_BATCH,
            start=M if checkpoint.dialect.initial_memory == "zeros" else 0,
            identity=_identity(checkpoint),
            vocab=checkpoint.vocab,
            notes=(checkpoint.random.note,) if checkpoint.random else (),
        )

    def double(self) -> EagerModel:
        """Compute in float64 from now on; returns itself."""
        self.model.double()
        return self

    def streams(self, batch_size: int, mem_len: int | None = None) -> Streams:
        """Memory for `batch_size` streams, at their start."""
        del mem_len
        return EagerStreams(self, batch_size)


def _identity(checkpoint: Checkpoint) -> str:
    """Names a checkpoint by its configuration and weights."""
    digest = hashlib.sha256()
    for name, w in checkpoint.weights.items():
        digest.update(name.encode() + np.ascontiguousarray(w).tobytes())
    return identity(checkpoint.config, checkpoint.dialect, digest.hexdigest())


class EagerStreams(Streams):
    """The reference's memory of B streams."""

    grows = True

    def __init__(self, model: EagerModel, batch_size: int) -> None:
        """Start all streams."""
        self.owner, self.info, self.model, self.batch_size = model, model.info, model.model, batch_size
        config = self.model.config
        if self.model.dialect.initial_memory == "zeros":  # else memories start empty and grow as they fill
            nbytes = batch_size * memory_bytes("hidden", config, config.mem_len)
            require_room(nbytes, *the_memory(config.mem_len, batch_size))
        self._memory = self.model.initial_memory(batch_size)
        self._consumed = np.zeros(batch_size, np.int64)
        self._kept: tuple[Memory, np.ndarray] | None = None

    def call(
        self, ids: np.ndarray, head: str, targets: np.ndarray | None, outputs: Sequence[np.ndarray], call: Call
    ) -> None:
        """Run one segment; new memory replaces the old, which stays as it was for `rollback`."""
        del call  # all streams advance by all of it
        kind, _, last = head.partition("@")
        with torch.inference_mode():
            h, memory = self.model.features(torch.from_numpy(ids), self._memory)
            asked = None if targets is None else torch.from_numpy(targets)
            found = HEADS[kind](self.model, h[:, -1:] if last else h, asked, self.owner.info.top_k)
        for array, tensor in zip(outputs, found, strict=True):
            array[...] = tensor.numpy()
        self._memory, self._consumed = memory, self._consumed + ids.shape[1]

    def begin(self) -> None:
        """Remember the present state."""
        self._kept = (self._memory, self._consumed)

    def commit(self) -> None:
        """Forget the remembered state."""
        self._kept = None

    def rollback(self) -> None:
        """Return to the remembered state."""
        if self._kept is not None:
            self._memory, self._consumed = self._kept
            self._kept = None

    def reset(self, streams: np.ndarray) -> None:
        """Give some streams the memory of a start: nothing that counts, or zeros."""
        if not streams.size:
            return
        rows = torch.from_numpy(streams)
        fresh = self.model.initial_memory(len(streams))
        hidden = []
        for old, new in zip(self._memory.hidden, fresh.hidden, strict=True):
            merged = _grown(old, new.shape[1]).clone()
            merged[rows] = 0
            merged[rows, merged.shape[1] - new.shape[1] :] = new
            hidden.append(merged)
        filled = self._memory.filled.clone()
        filled[rows] = fresh.filled
        self._memory = Memory(tuple(hidden), filled)
        self._consumed = self._consumed.copy()
        self._consumed[streams] = 0

    @property
    def positions(self) -> np.ndarray:
        """Graph position of each stream, int64 [B]."""
        return self._consumed + self.owner.info.start

    def state(self) -> Arrays:
        """Copies of memory, fill and positions."""
        hidden = {f"mem_{n:02d}": h.numpy().copy() for n, h in enumerate(self._memory.hidden)}
        return hidden | {"filled": self._memory.filled.numpy().copy(), "positions": self.positions}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy memory, fill and positions in."""
        layers = range(self.owner.info.config.n_layer)
        hidden = tuple(torch.from_numpy(state[f"mem_{n:02d}"].copy()) for n in layers)
        self._memory = Memory(hidden, torch.from_numpy(state["filled"].copy()))
        self._consumed = state["positions"] - self.owner.info.start

    def memory(self, stream: int) -> list[Arrays]:
        """Per layer the hidden states that count, oldest first, [filled, d_model]."""
        filled = int(self._memory.filled[stream])
        return [{"mem": h[stream, h.shape[1] - filled :].numpy().copy()} for h in self._memory.hidden]

    def projected_memory(self, stream: int, layout: str) -> list[Arrays]:
        """`memory`, as another layout would hold it: the reference's own projections of its hidden states."""
        from txl_export.graphs.layouts import TRACED
        from txl_export.layouts import state_specs

        filled = int(self._memory.filled[stream])
        specs = state_specs(layout, self.owner.info.config, 1)
        result: list[Arrays] = []
        with torch.inference_mode():
            for n, (layer, h) in enumerate(zip(self.model.stack, self._memory.hidden, strict=True)):
                kept = TRACED[layout].project(layer.attention, h[stream : stream + 1, h.shape[1] - filled :])
                names = [s.input.rpartition("_")[0] for s in specs if s.layer == n]
                result.append({k: t[0].numpy() for k, t in zip(names, kept, strict=True)})
        return result


def _grown(rows: Tensor, n: int) -> Tensor:
    """[B, m, d] with rows of zeros put before the oldest, to n rows at least."""
    missing = max(0, n - rows.shape[1])
    return torch.cat([rows.new_zeros(rows.shape[0], missing, rows.shape[2]), rows], dim=1)


def _log_probs(model: TransformerXL, h: Tensor, targets: Tensor | None, k: int) -> list[Tensor]:
    return [model.softmax.log_probs(h, model.embedding)]


def _logits(model: TransformerXL, h: Tensor, targets: Tensor | None, k: int) -> list[Tensor]:
    first = model.softmax.cluster_logits(0, h, model.embedding)
    if not model.config.n_tails:
        return [first]
    return [model.softmax.log_probs(h, model.embedding) + first.logsumexp(-1, keepdim=True)]


def _target(model: TransformerXL, h: Tensor, targets: Tensor | None, k: int) -> list[Tensor]:
    assert targets is not None
    return [model.softmax.target_log_probs(h, targets, model.embedding)]


def _top_k(model: TransformerXL, h: Tensor, targets: Tensor | None, k: int) -> list[Tensor]:
    return list(model.softmax.log_probs(h, model.embedding).topk(k, dim=-1))


def _features(model: TransformerXL, h: Tensor, targets: Tensor | None, k: int) -> list[Tensor]:
    return [h]


# One line per head, in the words of `txl_export.heads`: computed by the reference, not by the traced code.
HEADS: dict[str, Callable[[TransformerXL, Tensor, Tensor | None, int], list[Tensor]]] = {
    "log_probs": _log_probs,
    "logits": _logits,
    "target": _target,
    "top_k": _top_k,
    "features": _features,
}
