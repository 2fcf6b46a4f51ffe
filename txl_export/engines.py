"""Engines of a bundle as data: what was built from which graph, with what, for which GPUs. No package is needed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl_export.records import check_record

PORTABLE = "portable"
# What a build writes before it is complete, and what it makes of it.
PENDING, SUFFIX = ".pending", ".engine"


@dataclass(frozen=True)
class InputProfile:
    """The shapes that an engine takes for one input, and the one that it is optimised for."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Least, optimised and largest shape."""
        return self.min, self.opt, self.max


@dataclass(frozen=True)
class Target:
    """What an engine runs on.

    Attributes:
        gpu: model of the GPU that it was built on and runs on only; None where it is for capabilities.
        capabilities: such as "sm80"; none for an engine that runs on every GPU its package calls portable.
    """

    gpu: str | None = None
    capabilities: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """As in file names: "nvidia-l4", "sm80-sm89" or "portable"."""
        if self.gpu is not None:
            return re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-") or "gpu"
        return "-".join(self.capabilities) or PORTABLE


@dataclass(frozen=True)
class EngineSpec:
    """One engine: a graph, built by a package for a target.

    Attributes:
        file: name in the bundle.
        graph: the ONNX file that it was built from.
        package: "tensorrt" or "tensorrt-rtx".
        version: of the package; no other version runs the engine.
        target: the GPUs that it is for.
        profiles: shapes of each input.
        aliases: outputs that are the memory of an input: output -> input.
        tf32: whether fp32 products may be rounded to TF32.
        opt_level: 0 to 5; None for the package's own.
        workspace: bytes that a kernel may use for scratch; None for the package's own.
        graph_sha256: of the ONNX file.
        weights_sha256: of the weights that the graphs share.
        products: matrix products of the network by the type that they compute in.
        seconds: that building took.
    """

    file: str
    graph: str
    package: str
    version: str
    target: Target
    profiles: tuple[InputProfile, ...]
    aliases: Mapping[str, str]
    tf32: bool
    opt_level: int | None
    workspace: int | None
    graph_sha256: str
    weights_sha256: str
    products: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """SHA-256 of all that determines an engine: equal keys, equal engines."""
        results = ("file", "products", "seconds")
        told = {k: v for k, v in dataclasses.asdict(self).items() if k not in results}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def slot(self) -> tuple[str, str, str]:
        """What a bundle has one engine for: graph, package and target."""
        return self.graph, self.package, self.target.label

    @property
    def batch(self) -> tuple[int, int, int]:
        """Least, optimised and largest number of streams."""
        return tuple(shape[0] for shape in self.profiles[0].shapes)  # type: ignore[return-value]

    @property
    def precision(self) -> str:
        """The types that matrix products compute in, most frequent first: "fp16", or "fp16 + fp32"."""
        return " + ".join(sorted(self.products, key=lambda p: -self.products[p])) or "none"

    def command(self, bundle: Path) -> str:
        """The command line that builds it again."""
        words = ["txl-export", "build", str(bundle), "--backend", self.package]
        words += ["--batch", ":".join(map(str, self.batch))]
        if self.target.gpu is None and self.target.capabilities:
            words += ["--compute-capability", ",".join(self.target.capabilities)]
        words += ["--tf32"] * self.tf32
        for option, value in (("--opt-level", self.opt_level), ("--workspace", self.workspace)):
            words += [option, str(value)] if value is not None else []
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        """As in the manifest."""
        profiles = {p.name: {"min": [*p.min], "opt": [*p.opt], "max": [*p.max]} for p in self.profiles}
        gpus = {"gpu": self.target.gpu, "compute_capabilities": [*self.target.capabilities]}
        target = {**gpus, "label": self.target.label}
        rest = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain = {"aliases": dict(self.aliases), "products": dict(self.products)}
        return rest | plain | {"profiles": profiles, "target": target, "precision": self.precision, "key": self.key}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> EngineSpec:
        """Read an entry of a manifest; raises KeyError, TypeError, ValueError or AttributeError."""
        profiles = tuple(
            InputProfile(name, *(tuple(p[k]) for k in ("min", "opt", "max"))) for name, p in value["profiles"].items()
        )
        target = Target(value["target"]["gpu"], tuple(value["target"]["compute_capabilities"]))
        made = ("profiles", "target")
        rest = {f.name: value[f.name] for f in dataclasses.fields(cls) if f.name not in made}
        spec = cls(**rest, profiles=profiles, target=target)
        check_record(spec)
        if not profiles or any(len(shape) == 0 for shape in profiles[0].shapes):
            raise ValueError(f"engine {spec.file} has no profiles")
        return spec


def check_engines(engines: Iterable[EngineSpec], graphs: set[str], files: Mapping[str, Any]) -> None:
    """Engines belong to graphs, are listed among the files, and no two are for the same; raises ValueError."""
    seen: set[tuple[str, str, str]] = set()
    for e in engines:
        if e.graph not in graphs or e.file not in files or e.slot in seen or not e.file.endswith(SUFFIX):
            raise ValueError(f"engine {e.file!r} has no graph, no file or its place is taken")
        seen.add(e.slot)


def engine_file(graph: str, package: str, target: Target, taken: Iterable[str] = ()) -> str:
    """A name for a new engine, readable, and none of those that are taken."""
    stem = f"{graph.removesuffix('.onnx')}.{package}.{target.label}"
    names = (stem + ("" if n == 1 else f".{n}") + SUFFIX for n in range(1, len(set(taken)) + 2))
    return next(n for n in names if n not in set(taken))


def is_leftover(name: str, graphs: Iterable[str]) -> bool:
    """Whether a file that no manifest names is what an interrupted build leaves."""
    stems = "|".join(re.escape(g.removesuffix(".onnx")) for g in graphs)
    engine = rf"(?:{stems})\.tensorrt(?:-rtx)?\.[a-z0-9-]+(?:\.\d+)?{re.escape(SUFFIX)}"
    return bool(re.fullmatch(rf"{engine}(?:{re.escape(PENDING)})?|\.manifest\.json\..+", name))
