"""Sessions: B streams, their memory, and the loop that feeds it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_export.backends.base import Arrays, LoadedModel, Streams
from txl_export.calls import Call
from txl_export.errors import InputError
from txl_export.heads import HeadSpec
from txl_export.layouts import layout_of
from txl_export.runtime import sampling, snapshot
from txl_export.runtime.checks import Checks
from txl_export.runtime.tape import Sink, Source


class TopK(NamedTuple):
    """What head `top_k` gives: the k most probable tokens of each position, best first."""

    log_probs: np.ndarray  # float32 [B, n, k]
    ids: np.ndarray  # int64 [B, n, k]


class Session:
    """The memory of B streams on an engine; made by `Engine.session`.

    One thread at a time. A `feed` that fails leaves memory and positions as they were.
    """

    def __init__(self, model: LoadedModel, batch_size: int, mem_len: int | None = None) -> None:
        """Start `batch_size` streams that remember `mem_len` tokens; raises InputError for what cannot be had."""
        self._model, info = model, model.info
        if not _is_int(batch_size) or not 1 <= batch_size <= info.max_batch:
            raise InputError(f"batch_size is {batch_size!r}, expected 1 to {info.max_batch} streams")
        if mem_len is not None and not _is_int(mem_len):
            raise InputError(f"mem_len is {mem_len!r}, expected a number of tokens")
        if mem_len not in (None, info.mem_len) and not layout_of(info.layout).in_place:
            raise InputError(
                f"mem_len {mem_len} was asked for, layout {info.layout!r} holds {info.mem_len}: "
                "export with --layout ring"
            )
        self.batch_size = int(batch_size)
        self._streams: Streams = model.streams(self.batch_size, mem_len)
        self.info = self._streams.info
        self._checks = Checks(self.info, self.batch_size, model.name, self._streams.device)

    @property
    def positions(self) -> np.ndarray:
        """Tokens that each stream has consumed, int64 [B]."""
        return self._streams.positions - self.info.start

    def feed(
        self,
        ids: Any,
        segment_len: int | None = None,
        head: str | None = None,
        targets: Any = None,
        out: Any = None,
        lengths: Sequence[int] | np.ndarray | None = None,
    ) -> Any:
        """Run tokens and remember them.

        Each feed starts a new segment and is cut every `segment_len` tokens; without `same_length` the
        cut is part of what the model computes.

        On a GPU, `ids`, `targets` and `out` may be arrays of that GPU, of any library that speaks DLPack or
        `__cuda_array_interface__`: int64, C-contiguous. Tokens there are not checked, and a feed whose tokens and
        answers are both there waits for no answer: it has put its work in a stream, which consumers of a new answer
        wait for by those protocols, or by `wait()`. The stream that an array of `__cuda_array_interface__` names,
        the default one for others, waits for what was done with it: there `out` can be read and `ids` be written
        over at once.

        Args:
            ids: tokens, integers [B, n], n >= 1.
            segment_len: tokens per segment; None for the engine's default.
            head: what to return; None for the engine's first head.
            targets: the tokens to give log-probabilities of, integers [B, n] ([B, 1] for "target@last");
                for head `target` only.
            out: an array to write the answer into instead of a new one, of the answer's shape and dtype;
                a feed that fails may leave a part of its answer there.
            lengths: tokens that each stream reads, integers [B] of 0 (it stays as it is) to n, where they are not
                all n (layout `ring`); what stands behind them in `ids` and `targets` is not read and may be any
                integer, and the answers there are NaN (-1 for ids). At "@last" a stream's answer is for its own
                last token.

        Returns:
            The head's answer for every position, [B, n, ...], or for the last, [B, 1, ...]: a numpy array, or `TopK`
            of two; on the GPU where `ids` are. It belongs to the caller.

        Raises:
            InputError: wrong shape, dtype, token, head or length; the memory is untouched.
        """
        spec = self._checks.head(head)
        given = self._checks.given(ids, "ids")
        n = given.shape[1]
        counts = self._checks.counts(lengths, n)
        tokens = self._checks.source(given, "ids", counts)
        wanted = self._checks.targets(targets, spec, n, counts)
        limit = self.info.segment_len if segment_len is None else segment_len
        if not _is_int(limit) or limit < 1:
            raise InputError(f"segment_len is {limit!r}, expected 1 or more tokens")
        calls = self._streams.plan(counts, int(limit), spec.last_only)
        answers = self._checks.answers(spec, n, out, on_device=not isinstance(given, np.ndarray))
        sinks = [self._checks.sink(a, spec, counts, blank=lengths is not None) for a in answers]
        self._run(tokens, wanted, calls, spec, sinks)
        if len(answers) > 1:
            return TopK(*answers)
        return answers[0] if out is None or isinstance(out, np.ndarray) else out

    def _run(
        self, tokens: Source, targets: Source | None, calls: Iterator[Call], spec: HeadSpec, sinks: list[Sink]
    ) -> None:
        """Run the calls of one feed; all of them count, or none."""
        device = self._streams.device
        self._streams.begin()
        try:
            for call in calls:
                blocks = [sink.block(call) for sink in sinks]
                asked = None if targets is None else targets.take(call)
                self._streams.call(tokens.take(call), spec.name, asked, blocks, call)
                for sink, block in zip(sinks, blocks, strict=True):
                    sink.put(call, block)
            if device is not None:
                device.give_back()
        except BaseException:
            if device is not None:
                device.settle()
            self._streams.rollback()
            raise
        self._streams.commit()

    def text(self, ids: object) -> np.ndarray:
        """Check the tokens of one long stream, int64 [n]; raises InputError unless there are two or more."""
        array = self._checks.integers([ids], "ids")
        [tokens] = self._checks.tokens(array, "ids", np.array([array.shape[1]]))
        if tokens.size < 2:
            raise InputError(f"scoring got {tokens.size} token, expected a sequence of two or more")
        return tokens

    def reset(self, streams: Iterable[int] | None = None) -> None:
        """Put streams back to their start; the others stay as they are, bit for bit.

        Args:
            streams: their numbers; None for all.

        Raises:
            InputError: a number outside 0 to B - 1.
        """
        self._streams.reset(self._numbers(range(self.batch_size) if streams is None else streams))

    def _numbers(self, streams: Iterable[int]) -> np.ndarray:
        if not isinstance(streams, Iterable) or (isinstance(streams, np.ndarray) and not streams.ndim):
            raise InputError(f"streams is {streams!r}, expected a list of stream numbers")
        numbers = list(streams)
        for s in numbers:
            if not _is_int(s) or not 0 <= s < self.batch_size:
                raise InputError(f"stream {s!r} does not exist: this session has streams 0 to {self.batch_size - 1}")
        return np.array(sorted({int(s) for s in numbers}), dtype=np.int64)

    def rewind(self, n: int, streams: Iterable[int] | None = None) -> None:
        """Take back the last n tokens, as if they had not been fed.

        Args:
            n: tokens. A stream can always go back to the bundle's `rewind` tokens before the farthest that it came
                to, and further while the rows that this needs were not written over.
            streams: their numbers; None for all.

        Raises:
            InputError: the rows that this needs are gone, or the layout keeps none; nothing was taken back.
        """
        if not _is_int(n) or n < 0:
            raise InputError(f"rewind got {n!r}, expected 0 or more tokens")
        self._streams.rewind(int(n), self._numbers(range(self.batch_size) if streams is None else streams))

    def fork(self) -> Session:
        """A new session with the same memory and positions; the two go on independently."""
        other = Session(self._model, self.batch_size, self.info.mem_len)
        other._streams.adopt(self._streams, np.arange(self.batch_size))
        return other

    def reorder(self, streams: Sequence[int]) -> None:
        """Let stream i go on from where stream `streams[i]` is, as beam search needs; raises InputError.

        Args:
            streams: B numbers, repeats allowed.
        """
        numbers = list(streams) if isinstance(streams, Iterable) and np.ndim(streams) else [streams]
        self._numbers(numbers)  # type: ignore[arg-type]
        if len(numbers) != self.batch_size:
            raise InputError(f"reorder got {len(numbers)} streams, expected {self.batch_size}, one for each")
        self._streams.adopt(self._streams, np.array(numbers, dtype=np.int64))

    def memory(self, stream: int) -> list[np.ndarray]:
        """Hidden states that a stream remembers: per layer [filled, d_model], oldest first; copies.

        Raises:
            InputError: for a layout that keeps something else; see `memory_tensors`.
        """
        if self.info.layout != "hidden":
            raise InputError(f"layout {self.info.layout!r} keeps no hidden states: use memory_tensors(stream)")
        return [layer["mem"] for layer in self.memory_tensors(stream)] if self.info.mem_len else []

    def memory_tensors(self, stream: int) -> list[Arrays]:
        """Rows that count for a stream, whatever the layout: per layer by kind, oldest first; copies."""
        self._numbers([stream])
        return self._streams.memory(int(stream))

    def save(self, path: str | Path) -> None:
        """Write memory and positions to a file that `Engine.restore` takes back; atomic."""
        snapshot.save(Path(path), self.info, self.batch_size, self._streams.state())

    def _load(self, state: Mapping[str, np.ndarray]) -> None:
        self._streams.load_state(state)

    def generate(
        self,
        prompt: Sequence[int] | np.ndarray,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Iterable[int | Sequence[int]] = (),
    ) -> Iterator[int]:
        """Continue a prompt, one token at a time.

        The memory afterwards holds the prompt and every token that was yielded, also when the caller stops
        early, so that a further call can go on.

        Args:
            prompt: tokens, one or more.
            max_new_tokens: tokens to yield at most.
            temperature: divides the log-probabilities; 0 takes the most probable token.
            top_k: sample among the k most probable tokens.
            top_p: sample among the fewest tokens that hold this probability.
            seed: of the random numbers; the same seed gives the same tokens.
            stop: tokens, or sequences of them, that end the generation; yielded as the last.

        Yields:
            Token ids.

        Raises:
            InputError: a session of several streams, or numbers out of range.
        """
        if self.batch_size != 1:
            raise InputError(
                f"generate continues one stream, this session has {self.batch_size}: use a session of batch_size 1"
            )
        if not _is_int(max_new_tokens) or max_new_tokens < 0:
            raise InputError(f"max_new_tokens is {max_new_tokens!r}, expected 0 or more tokens")
        sampler = sampling.Sampler(temperature, top_k, top_p, seed)
        stops = sampling.stop_sequences(stop)
        head = self._generation_head()
        return self._generate(np.atleast_2d(np.asarray(prompt)), max_new_tokens, sampler, stops, head)

    def _generate(
        self,
        prompt: np.ndarray,
        count: int,
        sampler: sampling.Sampler,
        stops: list[tuple[int, ...]],
        head: str,
    ) -> Iterator[int]:
        answer = self.feed(prompt, head=head)
        longest = max(map(len, stops), default=0)
        recent: tuple[int, ...] = ()
        for _ in range(count):
            token = sampler(answer)
            recent = (*recent, token)[-longest:] if longest else ()
            try:
                yield token
            finally:
                answer = self.feed([[token]], head=head)
            if any(recent[-len(s) :] == s for s in stops):
                return

    def _generation_head(self) -> str:
        for head in ("log_probs@last", "logits@last", "top_k@last", "log_probs", "logits", "top_k"):
            if head in self.info.heads:
                return head
        raise InputError(
            f"generation needs a head that names tokens, this bundle has {', '.join(self.info.heads)}: "
            "export with --head log_probs@last"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
