"""What a backend gives to the runtime: a loaded model, and the memory of streams that it runs calls on."""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from txl_export.bundle import WEIGHTS, Bundle, Manifest
from txl_export.calls import Call, cut, plan_segment, whole_calls
from txl_export.checkpoints.base import Checkpoint
from txl_export.config import Dialect, ModelConfig
from txl_export.errors import InputError, TxlError
from txl_export.heads import HeadSpec, head_spec
from txl_export.layouts import StateSpec
from txl_export.precision import MEMORY
from txl_export.segments import SegmentRange
from txl_export.vocabulary import Vocabulary

if TYPE_CHECKING:
    from txl_export.backends.device.tape import DeviceSide

Arrays = dict[str, np.ndarray]

# Why a backend refuses whatever is of the other kind: no machine changes that.
RUNS_BUNDLES, RUNS_CHECKPOINTS = "runs bundles", "runs checkpoints"


class Backend(Protocol):
    """A module that can load bundles or checkpoints."""

    def refuses(self, source: Bundle | Checkpoint) -> str | None:
        """In a few words why this backend does not run a source on this machine; None where it seems to.

        What costs least is looked at first, and nothing native is asked for what the manifest or the lack of a GPU
        tells already. `load` may still find what cannot be seen from here.
        """
        ...

    def load(
        self,
        source: Any,
        mem_len: int | None = None,
        segment_len: int | None = None,
        threads: int | None = None,
    ) -> LoadedModel:
        """Load it; raises EnvironmentMismatch when this machine lacks what the backend needs."""
        ...


class GpuBackend(Backend, Protocol):
    """A backend that needs a GPU, and says of a bundle all that would fail before it is loaded."""

    def check(self, source: Bundle | Checkpoint, batch_sizes: Sequence[int] = ()) -> None:
        """Raise what `load` would, or `streams` for so many streams, of what can be seen from here."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether it runs only what was built for it, not any bundle."""
        ...


def reason(check: Callable[[Any], object], source: Bundle | Checkpoint) -> str | None:
    """What a check of a source raises, in a few words; None where it passes. What `load` checks, `refuses` tells."""
    try:
        check(source)
    except TxlError as e:
        return e.short
    return None


@dataclass(frozen=True)
class ModelInfo:
    """What the runtime needs to know of a loaded model.

    Attributes:
        config: the architecture.
        dialect: the origin's behaviours.
        layout: what the memory tensors hold.
        mem_len: M.
        segment_len: tokens after which a feed is cut by default.
        segments: the call lengths that can be run, fixed ones first in preference.
        heads: heads that can be asked for; the first is the default.
        top_k: tokens that head `top_k` returns.
        max_batch: most streams in one session.
        start: position at which a stream starts.
        identity: names the weights, so that a saved session meets only the model that made it.
        vocab: text to ids, where known.
        memory_dtype: type of the memory tensors.
        notes: what a reader of this model's answers should know of its weights, a line each.
    """

    config: ModelConfig
    dialect: Dialect
    layout: str
    mem_len: int
    segment_len: int
    segments: tuple[SegmentRange, ...]
    heads: tuple[str, ...]
    top_k: int
    max_batch: int
    start: int
    identity: str
    vocab: Vocabulary | None
    memory_dtype: str = "float32"
    notes: tuple[str, ...] = ()

    def head(self, name: str) -> HeadSpec:
        """What a head returns."""
        return self._heads[name] if name in self._heads else head_spec(name, self.config, self.top_k)

    @functools.cached_property
    def _heads(self) -> dict[str, HeadSpec]:
        """Of the model's own heads, made once: sessions ask at every feed."""
        return {name: head_spec(name, self.config, self.top_k) for name in self.heads}


def identity(config: ModelConfig, dialect: Dialect, weights: str) -> str:
    """Names a model by its weights and by what else its memory depends on.

    Args:
        config: the architecture and evaluation values.
        dialect: the origin's behaviours.
        weights: a hash of the weights.
    """
    told = json.dumps([config.to_dict(), dialect.to_dict(), weights])
    return hashlib.sha256(told.encode()).hexdigest()


def check_request(manifest: Manifest, mem_len: int | None, segment_len: int | None) -> int:
    """The segment length to cut at; raises InputError for lengths that a bundle does not have."""
    if mem_len not in (None, manifest.mem_len) and not (manifest.traits.in_place and mem_len <= manifest.mem_len):
        raise InputError(
            f"mem_len {mem_len} was asked for, this bundle holds {manifest.mem_len}: "
            f"export again with --mem-len {mem_len}"
        )
    cut = manifest.segment_len if segment_len is None else segment_len
    if not 1 <= cut <= manifest.reach:
        raise InputError(f"segment_len {cut} was asked for, this bundle's segments have 1 to {manifest.reach} tokens")
    return cut


def bundle_info(bundle: Bundle, segment_len: int) -> ModelInfo:
    """What the runtime needs to know of a bundle, whichever backend runs it."""
    m = bundle.manifest
    segments = dict.fromkeys(g.segment for g in m.graphs)
    return ModelInfo(
        config=m.config,
        dialect=m.dialect,
        layout=m.layout,
        mem_len=m.mem_len,
        segment_len=segment_len,
        segments=tuple(sorted(segments, key=lambda s: s.hi - s.lo)),
        heads=m.heads,
        top_k=m.top_k,
        max_batch=m.max_batch,
        start=m.start,
        identity=identity(m.config, m.dialect, str(m.files[WEIGHTS]["sha256"])),
        vocab=bundle.vocab,
        memory_dtype=m.policy.dtype(MEMORY),
        notes=(m.random.note,) if m.random else (),
    )


def rows_of(info: ModelInfo, specs: Sequence[StateSpec], state: Arrays, stream: int) -> list[Arrays]:
    """Per layer a stream's rows that count, by kind, oldest first, from tensors that hold M rows; copies."""
    filled = int(min(info.mem_len, state["positions"][stream]))
    layers: list[Arrays] = [{} for _ in range(info.config.n_layer)]
    for s in specs:
        rows = state[s.input][stream].take(range(info.mem_len - filled, info.mem_len), axis=s.row_axis)
        layers[s.layer][s.input.rpartition("_")[0]] = rows
    return layers


class LoadedModel(ABC):
    """A model ready to run on a backend."""

    name: str
    info: ModelInfo
    # What a reader of this model's numbers should know, a line each.
    notes: tuple[str, ...] = ()
    # Whether weights are packed for products of several rows, by backends that can; None for where it pays.
    packed: bool | None = None

    @abstractmethod
    def streams(self, batch_size: int, mem_len: int | None = None) -> Streams:
        """Memory for `batch_size` streams, at their start.

        Args:
            batch_size: streams.
            mem_len: tokens that they remember, where the layout leaves that to the session; None for M.
        """

    def warm_up(self) -> None:  # noqa: B027 - a backend with nothing to load lazily has nothing to do
        """Load what would be loaded at the first call."""

    def prepare(self, head: str, length: int, batch_size: int = 1) -> None:  # noqa: B027 - likewise
        """Load what a call of `length` tokens of `batch_size` streams that asks `head` needs."""


class Streams(ABC):
    """The memory and positions of B streams, and the calls that advance them.

    Calls between `begin` and `commit` can be taken back by `rollback`.

    Attributes:
        device: takes and gives arrays of the GPU that holds the memory; None where it is the host's.
    """

    device: DeviceSide | None = None

    batch_size: int
    info: ModelInfo
    # Whether memory tensors hold fewer than M rows until M tokens have been read.
    grows: bool = False

    def plan(self, counts: np.ndarray, segment_len: int, last_only: bool) -> Iterator[Call]:
        """Calls that run a feed, each to be run before the next is asked for.

        Args:
            counts: tokens of each stream, int64 [B].
            segment_len: tokens per segment.
            last_only: whether only the answer for each stream's last token is wanted.

        Raises:
            InputError: lengths that cannot be run.
        """
        del last_only
        if (counts != counts[0]).any() or not counts[0]:
            raise InputError(
                f"layout {self.info.layout!r} moves all streams on together: leave lengths out, or export with "
                "--layout ring"
            )
        free = self.info.config.same_length
        segments = cut(int(counts[0]), segment_len)
        return whole_calls(self.batch_size, [c for s in segments for c in plan_segment(s, self.info.segments, free)])

    @abstractmethod
    def call(
        self, ids: np.ndarray, head: str, targets: np.ndarray | None, outputs: Sequence[np.ndarray], call: Call
    ) -> None:
        """Run one call and advance the streams.

        Args:
            ids: int64 [B, L], contiguous; L fits one of the model's segments.
            head: the head to ask.
            targets: int64 [B, L] ([B, 1] at "@last") for head `target`.
            outputs: contiguous arrays to write the head's outputs into, [B, L or 1, ...].
            call: what of it counts.
        """

    @abstractmethod
    def begin(self) -> None:
        """Remember the present state for `rollback`."""

    @abstractmethod
    def commit(self) -> None:
        """Forget what `begin` remembered."""

    @abstractmethod
    def rollback(self) -> None:
        """Return to the state at `begin`."""

    @abstractmethod
    def reset(self, streams: np.ndarray) -> None:
        """Put some streams back to their start; the others stay as they are, bit for bit."""

    def rewind(self, n: int, streams: np.ndarray) -> None:
        """Take back the last n tokens of some streams; raises InputError where their rows are gone."""
        del streams
        raise InputError(
            f"layout {self.info.layout!r} cannot take back {n} tokens, it drops old rows at every call: export with "
            f"--layout ring --rewind {n}, or fork() before them"
        )

    @property
    @abstractmethod
    def positions(self) -> np.ndarray:
        """Graph position of each stream, int64 [B]; a copy."""

    @abstractmethod
    def state(self) -> Arrays:
        """Copies of everything that is remembered, by name, batch first."""

    @abstractmethod
    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave, for equally many streams."""

    def adopt(self, other: Streams, index: np.ndarray) -> None:
        """Let stream b go on from where stream index[b] of other streams is, or of these; the others stay as they are.

        Args:
            other: streams of the same model that remember as much.
            index: int64 [B].
        """
        self.load_state({name: array[index] for name, array in other.state().items()})

    @abstractmethod
    def memory(self, stream: int) -> list[Arrays]:
        """Per layer the rows that count, by kind ("mem", or "key" and "value"), oldest first; copies."""
