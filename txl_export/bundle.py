"""Bundles: the exported folder, and the manifest that says what is in it.

A bundle is flat: `manifest.json`, one ONNX file per (segment length, head), `weights.bin` that all of them
share, `initial.safetensors` with the first memory, and optionally `checkpoint/`. No torch, no onnx here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl_export.checkpoints.adapters import check_recorded
from txl_export.checkpoints.base import Checkpoint, RandomWeights
from txl_export.config import MOST, Dialect, ModelConfig
from txl_export.engines import EngineSpec, check_engines
from txl_export.errors import BundleError, CheckpointError, ConfigError, InputError, TxlError
from txl_export.files import inside, read_json, sha256
from txl_export.heads import HeadSpec, head_spec
from txl_export.layouts import Layout, StateSpec, layout_of, ring_rows, state_specs
from txl_export.named_configs import config_names
from txl_export.precision import MEMORY, PrecisionPolicy, tensor_names
from txl_export.segments import SegmentRange
from txl_export.vocabulary import Vocabulary, load_vocabulary

FORMAT = "txl-export-bundle"
SCHEMA = 3
MANIFEST, WEIGHTS, INITIAL, CHECKPOINT = "manifest.json", "weights.bin", "initial.safetensors", "checkpoint"


@dataclass(frozen=True)
class TensorSpec:
    """A named input or output of a graph; symbolic dimensions are strings ("batch", "segment", "rows")."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def sized(self, sizes: Mapping[str, int]) -> TensorSpec:
        """The same with the symbolic dimensions of these names as numbers."""
        shape = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in self.shape)
        return TensorSpec(self.name, self.dtype, shape)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class GraphSpec:
    """One graph of a bundle: its file, the segment lengths it takes and its head."""

    file: str
    segment: SegmentRange
    head: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds.

    Attributes:
        config: the architecture, with the evaluation values that the graphs were traced with.
        dialect: the origin's behaviours, likewise.
        layout: what the memory tensors hold.
        policy: in which precision each product is computed and the memory is kept.
        mem_len: M of the graphs.
        segment_len: tokens after which a feed is cut unless it says otherwise.
        top_k: tokens that head `top_k` returns.
        max_batch: most streams that a graph takes.
        rewind: tokens that a session can take back at any time, in a layout that is written in place.
        graphs: one per segment length and head; the first head is the default.
        files: size and SHA-256 of every file.
        judge: where the checkpoint was: {"path", "origin", "overrides", "sha256"}; "adapters" where some were merged,
            each as `Adapter.to_dict` gives it. For random weights what they are drawn from: {"random", "origin",
            "overrides"}.
        versions: package versions that made it.
        engines: what was built from the graphs.
        vocabulary: as in a native checkpoint, or None; its words are in a file of their own.
    """

    config: ModelConfig
    dialect: Dialect
    layout: str
    policy: PrecisionPolicy
    mem_len: int
    segment_len: int
    top_k: int
    max_batch: int
    graphs: tuple[GraphSpec, ...]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    judge: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    vocabulary: Mapping[str, Any] | None = None
    engines: tuple[EngineSpec, ...] = ()
    rewind: int = 0

    @property
    def precision(self) -> str:
        """The precision of the products, or of their weights: a key of `txl_export.number_types.PRECISIONS`."""
        return self.policy.precision

    @property
    def random(self) -> RandomWeights | None:
        """What the weights were drawn from, where they are not trained."""
        return RandomWeights.from_dict(self.judge["random"]) if "random" in self.judge else None

    @property
    def states(self) -> list[StateSpec]:
        """The memory tensors of every graph."""
        return state_specs(self.layout, self.config, self.rows, self.policy.dtype(MEMORY))

    @property
    def traits(self) -> Layout:
        """What the layout's graphs take and give."""
        return layout_of(self.layout)

    @property
    def reach(self) -> int:
        """Tokens from the start of a segment to the end of a call in it, padding included, at most."""
        return max(self.longest, self.segment_len)

    @property
    def ring(self) -> int:
        """S: rows that a stream's memory goes round in at M; see `txl_export.ring`."""
        return ring_rows(self.mem_len, self.reach, self.rewind)

    @property
    def guard(self) -> int:
        """G: rows behind the ring, which the last tokens of a call may spill into and nothing reads."""
        return self.longest - 1

    @property
    def rows(self) -> int:
        """Rows of the memory tensors at M: M, or S + G where they are written in place."""
        return self.traits.rows(self.mem_len, self.reach, self.longest, self.rewind)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that the bundle has graphs for; the first is the default."""
        return tuple(dict.fromkeys(g.head for g in self.graphs))

    @property
    def vocabulary_files(self) -> tuple[str, ...]:
        """The file that holds the vocabulary's words, where it has one."""
        name = (self.vocabulary or {}).get("file")
        return () if name is None else (name,)

    @property
    def longest(self) -> int:
        """Tokens in the longest segment that a graph takes."""
        return max(g.segment.hi for g in self.graphs)

    @property
    def start(self) -> int:
        """Position at which a stream starts: 0, or M where the first memory is zeros that are attended to."""
        return self.mem_len if self.dialect.initial_memory == "zeros" else 0

    @property
    def aliases(self) -> dict[str, str]:
        """Outputs of every graph that are the memory of an input, written in place: output -> input."""
        return {s.output: s.input for s in self.states if s.aliased}

    def head(self, name: str) -> HeadSpec:
        """What a head returns."""
        return head_spec(name, self.config, self.top_k)

    def inputs(self, graph: GraphSpec) -> list[TensorSpec]:
        """The inputs of a graph, in its order."""
        length: int | str = graph.segment.lo if graph.segment.fixed else "segment"
        ids = TensorSpec("input_ids", "int64", ("batch", length))
        places = [TensorSpec(name, "int64", ("batch",)) for name in ("positions", *self.traits.inputs)]
        states = [TensorSpec(s.input, s.dtype, ("batch", *s.dims)) for s in self.states]
        head = self.head(graph.head)
        columns = 1 if head.last_only else length
        targets = [TensorSpec("targets", "int64", ("batch", columns))] if head.takes_targets else []
        return [ids, *places, *states, *targets]

    def outputs(self, graph: GraphSpec) -> list[TensorSpec]:
        """The outputs of a graph, in its order."""
        length: int | str = graph.segment.lo if graph.segment.fixed else "segment"
        head = self.head(graph.head)
        rows = 1 if head.last_only else length
        answers = [TensorSpec(o.name, o.dtype, ("batch", rows, *o.tail)) for o in head.outputs]
        states = [TensorSpec(s.output, s.dtype, ("batch", *s.dims)) for s in self.states]
        return [*answers, TensorSpec("new_positions", "int64", ("batch",)), *states]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `manifest.json`."""
        graphs = [
            {
                "file": g.file,
                "segment": str(g.segment),
                "head": g.head,
                "inputs": [t.to_dict() for t in self.inputs(g)],
                "outputs": [t.to_dict() for t in self.outputs(g)],
            }
            for g in self.graphs
        ]
        states = [{"input": s.input, "output": s.output, "bytes_per_stream": s.nbytes} for s in self.states]
        value = {
            "format": FORMAT,
            "schema": SCHEMA,
            "model": self.config.to_dict(),
            "dialect": self.dialect.to_dict(),
            "layout": self.layout,
            "precision": self.precision,
            "policy": self.policy.to_dict(),
            "mem_len": self.mem_len,
            "segment_len": self.segment_len,
            "start_position": self.start,
            "top_k": self.top_k,
            "max_batch": self.max_batch,
            "rewind": self.rewind,
            "states": [{"input": "positions", "output": "new_positions", "bytes_per_stream": 8}, *states],
            "graphs": graphs,
            "engines": [e.to_dict() for e in self.engines],
            "files": {name: dict(f) for name, f in self.files.items()},
            "judge": dict(self.judge),
            "versions": dict(self.versions),
            "vocabulary": self.vocabulary,
        }
        return value | {"digest": digest(value)}

    @classmethod
    def from_dict(cls, value: Any, source: Path) -> Manifest:
        """Read `manifest.json`.

        Raises:
            BundleError: another format, a newer schema, missing or contradictory entries.
        """
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise BundleError(f"{source} is not the manifest of a bundle: its format is not {FORMAT!r}")
        if value.get("schema") != SCHEMA:
            raise BundleError(
                f"{source} has schema {value.get('schema')!r}, expected {SCHEMA}: update txl-export, or export again"
            )
        try:
            manifest = cls._parse(value)
            manifest._check()
            if manifest.to_dict() != value:  # names, shapes and pairs are derived: a manifest that disagrees was edited
                raise BundleError(f"{source} contradicts itself: it was edited; export again")
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise BundleError(f"{source} is damaged ({type(e).__name__}: {e}): export again") from None
        except (ConfigError, InputError) as e:
            raise BundleError(f"{source} is damaged ({e}): export again") from None
        return manifest

    def _check(self) -> None:
        """Numbers that nothing else derives; raises ValueError or TypeError."""
        for name, least in (("mem_len", 0), ("rewind", 0), ("segment_len", 1), ("top_k", 1), ("max_batch", 1)):
            n = getattr(self, name)
            if not isinstance(n, int) or isinstance(n, bool) or not least <= n <= MOST:
                raise ValueError(f"{name} is {n!r}")
        most = MOST if self.traits.in_place else self.longest
        if self.segment_len > most or self.top_k > self.config.vocab_size:
            raise ValueError(f"segment_len {self.segment_len} or top_k {self.top_k} is too large")
        if self.vocabulary is not None and not isinstance(self.vocabulary.get("file", ""), str):
            raise TypeError("vocabulary names a file that is no text")
        for name, entry in self.files.items():
            if not isinstance(entry["bytes"], int) or not isinstance(entry["sha256"], str):
                raise TypeError(f"files lacks size and hash of {name}")
        unknown = set(self.policy.choices) - set(tensor_names(self.config.n_layer))
        if unknown:
            raise ValueError(f"policy names {min(unknown)!r}, which the model has not")
        self._check_judge()
        check_engines(self.engines, {g.file for g in self.graphs}, self.files)

    def _check_judge(self) -> None:
        path, overrides = self.judge.get("path", ""), self.judge.get("overrides", {})
        if not isinstance(path, str) or "\0" in path or not isinstance(overrides, Mapping):
            raise ValueError("judge is no path with overrides")
        check_recorded(self.judge.get("adapters", ()))
        if self.random is not None and self.random.name not in config_names():
            raise ValueError(f"judge names {self.random.name!r}, which is no configuration")

    @classmethod
    def _parse(cls, value: dict[str, Any]) -> Manifest:
        graphs = tuple(GraphSpec(g["file"], SegmentRange.parse(g["segment"]), g["head"]) for g in value["graphs"])
        if not graphs or not all(isinstance(g.file, str) for g in graphs):
            raise ValueError("it has no graphs, or graphs without a file")
        return cls(
            config=ModelConfig.from_dict(value["model"]),
            dialect=Dialect.from_dict(value["dialect"]),
            policy=PrecisionPolicy.from_dict(value["policy"]),
            graphs=graphs,
            engines=tuple(EngineSpec.from_dict(e) for e in value["engines"]),
            **{k: value[k] for k in ("layout", "mem_len", "segment_len", "top_k", "max_batch", "rewind")},
            **{k: value[k] for k in ("files", "judge", "versions", "vocabulary")},
        )


def digest(value: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's entries, its own digest left out: shows that it was edited, not by whom."""
    rest = {k: v for k, v in value.items() if k != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Bundle:
    """An exported folder that was found complete.

    Attributes:
        path: the folder.
        manifest: what it holds.
        judge: the checkpoint to compare with, where it is known better than the manifest knows it.
    """

    path: Path
    manifest: Manifest
    judge: Checkpoint | None = None

    @classmethod
    def open(cls, path: str | Path, check_files: bool = True, engines: bool = True) -> Bundle:
        """Open a bundle and check every file against the manifest.

        Args:
            path: the folder.
            check_files: compare sizes and hashes too (reads every byte once).
            engines: check engines like all other files; what builds them goes on without.

        Raises:
            BundleError: not a bundle, incomplete, edited, truncated or from a newer version.
        """
        path = Path(path)
        if not (path / MANIFEST).is_file():
            raise BundleError(f"{path} is no bundle: it has no {MANIFEST}; make one with 'txl-export export'")
        manifest = Manifest.from_dict(read_json(path / MANIFEST, BundleError), path / MANIFEST)
        bundle = cls(path, manifest)
        for name in [WEIGHTS, INITIAL, *manifest.vocabulary_files, *(g.file for g in manifest.graphs)]:
            if name not in manifest.files:
                raise BundleError(f"{path / MANIFEST} lists no file {name!r}: it was edited; export again")
        built = {e.file for e in manifest.engines}
        for name in manifest.files:
            if engines or name not in built:
                bundle.check_file(name, check_files)
        return bundle

    def check_file(self, name: str, check_hash: bool = True) -> None:
        """Compare a file's size, and its hash, with the manifest; raises BundleError that says what makes it anew."""
        expected, file = self.manifest.files[name], inside(self.path, name, BundleError)
        engine = next((e for e in self.manifest.engines if e.file == name), None)
        again = f"build again: {engine.command(self.path)}" if engine else "export again"
        if not file.is_file():
            raise BundleError(f"{file} is missing: {again}")
        if file.stat().st_size != expected["bytes"]:
            found = file.stat().st_size
            raise BundleError(
                f"{file} has {found} bytes, the manifest says {expected['bytes']}: truncated or edited; {again}"
            )
        if check_hash and sha256(file) != expected["sha256"]:
            made = "built" if engine else "exported"
            raise BundleError(f"{file} is not the file that was {made} (its SHA-256 differs): {again}")

    def initial_rows(self) -> dict[str, np.ndarray]:
        """Per memory tensor the row that fills it at the start of a stream, of `StateSpec.row_shape`.

        Raises:
            BundleError: a row is missing or misshaped.
        """
        from txl_export.checkpoints.tensors import read_safetensors

        try:
            rows = read_safetensors(self.path / INITIAL)
        except TxlError as e:
            raise BundleError(str(e)) from None
        for spec in self.manifest.states:
            if spec.input not in rows or rows[spec.input].shape != spec.row_shape:
                raise BundleError(
                    f"{self.path / INITIAL} has no row of shape {list(spec.row_shape)} for {spec.input}: export again"
                )
        return rows

    @property
    def vocab(self) -> Vocabulary | None:
        """The bundle's vocabulary; None where the checkpoint had none. Raises BundleError for a damaged one."""
        try:
            return load_vocabulary(self.manifest.vocabulary, self.path)
        except CheckpointError as e:
            raise BundleError(str(e)) from None

    @property
    def judge_path(self) -> Path | None:
        """Where the checkpoint is: inside the bundle, or where it was at export; None when it is gone."""
        if (self.path / CHECKPOINT).is_dir():
            return self.path / CHECKPOINT
        recorded = self.manifest.judge.get("path")
        found = self._recorded(recorded) if isinstance(recorded, str) else None
        return found if found and found.exists() else None

    @property
    def judge_adapters(self) -> tuple[Path, ...]:
        """Where the adapters were that are in the weights, there or not; a checkpoint in the bundle has them merged."""
        return tuple(self._recorded(a["path"]) for a in self.manifest.judge.get("adapters", ()))

    def _recorded(self, path: str) -> Path:
        return Path(path) if Path(path).is_absolute() else (self.path / path).resolve()


def file_entry(path: Path) -> dict[str, Any]:
    """Size and hash of a file, as a manifest lists it."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
