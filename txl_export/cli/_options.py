"""Options that several verbs share, under one spelling each. Nothing heavy is imported here."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txl_export.layouts import DEFAULT_LAYOUT, LAYOUTS

if TYPE_CHECKING:
    from txl_export.bundle import Bundle
    from txl_export.checkpoints import Checkpoint
    from txl_export.runtime import Engine

F = TypeVar("F", bound=Callable[..., Any])

# `txl_export.export`'s own defaults, which cannot be read here without importing torch; a test compares them.
LAYOUT, PRECISION, HEAD, TOP_K = DEFAULT_LAYOUT, "fp32", "log_probs", 40
LAYOUT_NAMES = "|".join(LAYOUTS)


class CommaList(click.ParamType[Any]):
    """Values separated by commas, each converted by `kind`; the values of a repeated option are joined."""

    name = "list"

    def __init__(self, kind: Callable[[str], Any] = str, what: str = "values") -> None:
        """Take what converts one value, and a word for messages."""
        self.kind, self.what = kind, what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Split and convert; a usage error for anything else."""
        if not isinstance(value, str):
            return tuple(value)
        parts = [p.strip() for p in value.split(",")]
        try:
            return tuple(self.kind(p) for p in parts if p or self.fail(f"{value!r} has an empty entry", param, ctx))
        except ValueError:
            self.fail(f"{value!r} is no list of {self.what}, such as {self._example()}", param, ctx)

    def _example(self) -> str:
        return "1,64" if self.kind is int else "a,b"


class NamedValues(click.ParamType[Any]):
    """NAME=VALUE pairs separated by commas, as a dict."""

    name = "name=value,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """Split at commas and equals signs; a usage error for anything else."""
        if isinstance(value, dict):
            return value
        pairs = [part.partition("=") for part in str(value).split(",")]
        if not all(key.strip() and eq and given.strip() for key, eq, given in pairs):
            self.fail(f"{value!r} is no list of NAME=VALUE, such as logits=fp32,layers.*.content=fp32", param, ctx)
        return _once([(key.strip(), given.strip()) for key, _, given in pairs], param, ctx)


class JsonValue(click.ParamType[Any]):
    """One NAME=VALUE whose value is JSON, or text that is no JSON, as a pair."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Split at the first equals sign; a usage error without one."""
        if isinstance(value, tuple):
            return value
        key, eq, given = (part.strip() for part in str(value).partition("="))
        if not (key and eq and given):
            self.fail(f"{value!r} is no NAME=VALUE, such as pre_lnorm=true or cutoffs=[20000,40000]", param, ctx)
        try:
            return key, json.loads(given)
        except (ValueError, RecursionError):
            return key, given


def _once(pairs: Iterable[tuple[str, Any]], param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
    """Pairs as a dict; a usage error for a name with two values, of which one would be lost."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given two values: give it once", ctx, param)
    return found


def joined(ctx: click.Context, param: click.Parameter, values: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A callback: what a repeated option of NAME=VALUE lists says together; None where it is not given."""
    return _once([pair for value in values for pair in value.items()], param, ctx) or None


def paired(ctx: click.Context, param: click.Parameter, values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A callback: what a repeated option of single NAME=VALUE pairs says together."""
    return _once(values, param, ctx)


NAMED_VALUES = NamedValues()
INTS = CommaList(int, "whole numbers")
NAMES = CommaList(str, "names")


def examples(*commands: str) -> str:
    """The end of a verb's help: commands to copy, a test parses each."""
    return "\b\nExamples:\n" + "\n".join(f"  txl-export {c}" for c in commands)


@dataclass(frozen=True)
class Reading:
    """How to read a checkpoint: its origin, and values in place of the stored ones or of those that no file holds.

    Attributes:
        origin: the implementation; None to detect it.
        same_length: None for the stored value, as the two below.
        clamp_len: see `ModelConfig`.
        initial_memory: see `Dialect`.
        others: any other overrides that `load_checkpoint` takes.
        vocabulary: file that the vocabulary is in, or "bytes"; None for the stored one.
        adapters: folders of adapters to merge, in order.
        mem_len: memory length M in tokens; None for the stored one.
    """

    origin: str | None
    same_length: bool | None
    clamp_len: int | None
    initial_memory: str | None
    others: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: str | None = None
    adapters: tuple[Path, ...] = ()
    mem_len: int | None = None

    @property
    def overrides(self) -> dict[str, Any]:
        """The values that were given, as `load_checkpoint` takes them."""
        values = {n: getattr(self, n) for n in ("mem_len", "same_length", "clamp_len", "initial_memory")}
        return {**self.others, **{n: v for n, v in values.items() if v is not None}}

    @property
    def given(self) -> bool:
        """Whether anything is to be read otherwise than it is stored."""
        return bool(self.origin or self.overrides or self.vocabulary or self.adapters)

    def load(self, path: Path) -> Checkpoint:
        """Load a checkpoint; raises CheckpointError or ConfigError."""
        from txl_export.checkpoints import load_checkpoint

        return load_checkpoint(path, self.origin, self.overrides, self.vocabulary, self.adapters)

    def draw(self, name: str, seed: int) -> Checkpoint:
        """Random weights for a named configuration; raises InputError for what only files have, or ConfigError."""
        from txl_export.errors import InputError
        from txl_export.random_weights import random_checkpoint

        flags = {"origin": self.origin, "vocabulary": self.vocabulary, "adapter": self.adapters}
        given = [flag for flag, value in flags.items() if value]
        if given:
            raise InputError(
                f"random weights have the origin of {name}, no vocabulary and no adapter: leave out --{given[0]}"
            )
        return random_checkpoint(name, seed, self.overrides)

    def open(self, path: Path) -> Bundle | Checkpoint:
        """Open a bundle or load a checkpoint; raises InputError for values that a bundle cannot change."""
        from txl_export.backends.base import check_request
        from txl_export.bundle import Bundle
        from txl_export.errors import InputError

        if not is_bundle(path):
            return self.load(path)
        bundle, overrides = Bundle.open(path), self.overrides
        check_request(bundle.manifest, overrides.pop("mem_len", None), None)
        given = [name for name in ("origin", "vocabulary") if getattr(self, name)] + ["adapter"] * bool(self.adapters)
        if given or overrides:
            names = given + list(overrides)
            flags = ", ".join(f"--set {n}" if n in self.others else "--" + n.replace("_", "-") for n in names)
            raise InputError(f"{path} is a bundle, {flags} cannot change its graphs: export again with {flags}")
        return bundle


def is_bundle(path: Path) -> bool:
    """Whether a path is a bundle's folder."""
    from txl_export.bundle import MANIFEST

    return (path / MANIFEST).is_file()


def checkpoint_options(function: F) -> F:
    """Add --origin, the evaluation values, --set and --adapter; the verb gets them as one `reading`."""

    @click.option("--origin", help="Implementation the checkpoint comes from; detected when not given.")
    @click.option("--mem-len", type=int, help="Memory length M in tokens; the stored one when not given.")
    @click.option("--same-length/--no-same-length", default=None, help="Every query sees equally many keys.")
    @click.option("--clamp-len", type=int, help="Distances above it share one position; -1 for none.")
    @click.option("--initial-memory", type=click.Choice(["empty", "zeros"]), help="What streams start from.")
    @click.option(
        "--set",
        "others",
        type=JsonValue(),
        multiple=True,
        callback=paired,
        help="Any other value that a file lacks, as pre_lnorm=true.",
    )
    @click.option("--vocabulary", metavar="FILE", help="Words by id: a Vocab pickle or a word per line; bytes, none.")
    @click.option(
        "--adapter",
        "adapters",
        metavar="DIR",
        multiple=True,
        type=click.Path(path_type=Path),
        help="LoRA adapter as PEFT saves it, merged into the weights; repeatable.",
    )
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        origin: str | None,
        mem_len: int | None,
        same_length: bool | None,
        clamp_len: int | None,
        initial_memory: str | None,
        others: dict[str, Any],
        vocabulary: str | None,
        adapters: tuple[Path, ...],
        **rest: Any,
    ) -> Any:
        reading = Reading(origin, same_length, clamp_len, initial_memory, others, vocabulary, adapters, mem_len)
        return function(*args, reading=reading, **rest)

    return wrapped  # type: ignore[return-value]


@dataclass(frozen=True)
class Running:
    """How to run a model."""

    backend: str | None
    segment_len: int | None
    threads: int | None

    def load(self, source: Bundle | Checkpoint, mem_len: int | None = None) -> Engine:
        """The engine of a bundle or checkpoint, with its own M or, where it takes others, the one given."""
        from txl_export.runtime import Engine

        return Engine.load(source, self.backend, mem_len, self.segment_len, self.threads)


def engine_options(function: F) -> F:
    """Add --backend, --segment-len and --threads; the verb gets them as one `running`."""

    @click.option("--backend", metavar="NAME", help="What runs it; the fastest that works here else: see doctor.")
    @click.option("--segment-len", type=int, help="Tokens per segment; the bundle's when not given.")
    @click.option("--threads", type=int, help="CPU threads; all cores when not given.")
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        backend: str | None,
        segment_len: int | None,
        threads: int | None,
        **rest: Any,
    ) -> Any:
        return function(*args, running=Running(backend, segment_len, threads), **rest)

    return wrapped  # type: ignore[return-value]


pretokenized_option = click.option(
    "--pretokenized",
    is_flag=True,
    help="Words of the text are set apart by blanks already.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
