"""What a session is given: tokens, lengths and arrays for answers, checked before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from txl_export.backends.base import ModelInfo
from txl_export.errors import InputError
from txl_export.files import first_line
from txl_export.heads import HeadSpec
from txl_export.runtime.tape import HostSink, HostSource, Sink, Source

if TYPE_CHECKING:
    from txl_export.backends.device.tape import DeviceSide


class Checks:
    """Checks of one session; all raise InputError in a line."""

    def __init__(self, info: ModelInfo, batch_size: int, backend: str, device: DeviceSide | None) -> None:
        """Take what they depend on.

        Args:
            info: of the session's model.
            batch_size: its streams.
            backend: its name.
            device: takes and gives arrays of the GPU that holds the memory; None where it is the host's.
        """
        self.info, self.batch_size, self.backend, self.device = info, batch_size, backend, device

    def head(self, name: str | None) -> HeadSpec:
        """What a head returns; None for the first."""
        if name is not None and name not in self.info.heads:
            raise InputError(
                f"head {name!r} is not in this bundle, which has {', '.join(self.info.heads)}: "
                f"export with --head {name}"
            )
        return self.info.head(name or self.info.heads[0])

    def given(self, value: object, what: str) -> Any:
        """Integers [B, n]: a checked numpy array, or one on the GPU that holds the memory, taken as it is."""
        side = self.device
        if not self._on_device(value) or side is None:
            return self.integers(value, what)
        array = side.taken(value, what)
        if array.dtype != np.int64:
            raise InputError(f"{what} have dtype {array.dtype} on the GPU, expected int64")
        self._check_shape(array.shape, what)
        return array

    def _on_device(self, value: object) -> bool:
        """Whether this is an array on the GPU that holds the memory; raises InputError for one where that is not."""
        if isinstance(value, np.ndarray | list | tuple):
            return False
        from txl_export.backends.device.arrays import is_on_device

        found = is_on_device(value)
        if found and self.device is None:
            raise InputError(
                f"an array on a GPU was given, backend {self.backend!r} reads the host's memory: give a numpy "
                "array, or run on the GPU with --backend tensorrt"
            )
        return found

    def integers(self, ids: object, what: str) -> np.ndarray:
        """Check that these are integers [B, n]."""
        try:
            array = np.asarray(ids)
        except ValueError:
            raise InputError(f"{what} have rows of different lengths, expected [{self.batch_size}, n]") from None
        except Exception as e:  # arrays of other libraries refuse with errors of their own
            raise InputError(f"{what} cannot be read ({first_line(e)}): give a numpy array of integers") from None
        if array.dtype.kind not in "iu" and array.size:
            raise InputError(f"{what} have dtype {array.dtype}, expected integers")
        self._check_shape(array.shape, what)
        return array

    def _check_shape(self, shape: tuple[int, ...], what: str) -> None:
        if len(shape) != 2 or shape[0] != self.batch_size or not shape[1]:
            raise InputError(f"{what} have shape {list(shape)}, expected [{self.batch_size}, n] with n of 1 or more")

    def counts(self, lengths: object, n: int) -> np.ndarray:
        """Tokens of each stream, int64 [B]."""
        if lengths is None:
            return np.full(self.batch_size, n)
        try:
            array = np.asarray(lengths)
        except ValueError:  # rows of different lengths
            array = np.empty(0)
        fits = array.shape == (self.batch_size,) and array.dtype.kind in "iu"
        if not fits or not ((array >= 0) & (array <= n)).all() or not array.any():
            shown = " ".join(f"{lengths}".split())[:80]
            raise InputError(f"lengths are {shown}, expected {self.batch_size} numbers of 0 to {n}, not all 0")
        return array.astype(np.int64)

    def source(self, given: Any, what: str, counts: np.ndarray, last_only: bool = False) -> Source:
        """Tokens as calls take them; of those on a GPU nobody looks at the values."""
        if isinstance(given, np.ndarray):
            return HostSource(self.tokens(given, what, counts), last_only)
        assert self.device is not None
        return self.device.source(given, last_only)

    def tokens(self, array: np.ndarray, what: str, counts: np.ndarray) -> np.ndarray:
        """Check integers [B, n], of which each stream reads `counts`, and make them tokens, int64."""
        if counts.min() < array.shape[1]:
            array = np.where(np.arange(array.shape[1]) < counts[:, None], array, 0)
        size, tokens = self.info.config.vocab_size, array.astype(np.int64)  # a copy: `out` may lie over the caller's
        if (tokens.view(np.uint64) >= size).any():  # a negative number is a large one there
            low, high = array.min(), array.max()
            raise InputError(f"{what} hold {low if low < 0 else high}, expected tokens from 0 to {size - 1}")
        return tokens

    def targets(self, targets: object, spec: HeadSpec, n: int, counts: np.ndarray) -> Source | None:
        """Targets [B, n], or [B, 1] where only the last counts, for heads that take them."""
        if not spec.takes_targets:
            if targets is not None:
                raise InputError(f"targets were given, but head {spec.name!r} takes none: use head='target'")
            return None
        if targets is None:
            raise InputError(f"head {spec.name!r} needs targets: give the tokens whose log-probabilities are asked for")
        given = self.given(targets, "targets")
        columns = 1 if spec.last_only else n
        if given.shape[1] != columns:
            raise InputError(f"targets have shape {list(given.shape)}, expected {[self.batch_size, columns]}")
        return self.source(given, "targets", counts, spec.last_only)

    def answers(self, spec: HeadSpec, n: int, out: Any, on_device: bool) -> list[Any]:
        """Arrays for the answers: the caller's, or new ones where the tokens are."""
        shapes = [(self.batch_size, 1 if spec.last_only else n, *o.tail) for o in spec.outputs]
        side = self.device
        if out is None:
            make = side.empty if side is not None and on_device else np.empty
            return [make(shape, o.dtype) for shape, o in zip(shapes, spec.outputs, strict=True)]
        if len(shapes) > 1:
            raise InputError(f"out cannot be given for head {spec.name!r}, which returns {len(shapes)} arrays")
        if self._on_device(out) and side is not None:
            array = side.taken(out, "out", written=True)
            if array.shape != shapes[0] or array.dtype != spec.outputs[0].dtype:
                raise InputError(
                    f"out is {array.dtype} {list(array.shape)}, expected {spec.outputs[0].dtype} {list(shapes[0])}"
                )
            return [array]
        if not isinstance(out, np.ndarray) or out.shape != shapes[0] or out.dtype != spec.outputs[0].dtype:
            found = f"{out.dtype} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
            raise InputError(f"out is {found}, expected {spec.outputs[0].dtype} {list(shapes[0])}")
        if not out.flags.writeable or any(
            step == 0 < size - 1 for step, size in zip(out.strides, out.shape, strict=True)
        ):
            raise InputError("out is read-only or repeats its numbers, expected an array to write into")
        return [out]

    def sink(self, answer: Any, spec: HeadSpec, counts: np.ndarray, blank: bool) -> Sink:
        """An answer as calls give it; `blank` where some of it may stay unanswered."""
        if isinstance(answer, np.ndarray):
            if blank:
                answer.fill(-1 if answer.dtype.kind == "i" else np.nan)
            return HostSink(answer, spec.last_only, counts)
        side = self.device
        assert side is not None
        if blank:
            side.blank(answer)
        return side.sink(answer, spec.last_only, counts)
