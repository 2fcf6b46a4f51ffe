"""Small models by name and their bundles: each is exported once per test run, whichever worker needs it first.

Tests take the fixture `exported`; it comes from `tests/conftest.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from tests.helpers import random_checkpoint, tiny_config
from txl_export.bundle import INITIAL, MANIFEST, WEIGHTS, Bundle
from txl_export.checkpoints import Checkpoint
from txl_export.config import Dialect, ModelConfig
from txl_export.precision import PrecisionPolicy
from txl_export.runtime import Engine
from txl_export.segments import parse_segments

STD = 0.3  # attention far from uniform, so that one wrong key shows
CUT = 64  # segment_len of every judge: no bundle here has longer segments

_REVERSED = Dialect(cluster_order="reversed")
_ZEROS = Dialect(initial_memory="zeros")

# Each covers several behaviours; together they cover all of them in both layouts.
MODELS: dict[str, tuple[ModelConfig, Dialect]] = {
    "paper": (tiny_config(mem_len=24), Dialect()),
    "same_length": (
        tiny_config(
            mem_len=24, same_length=True, clamp_len=9, pre_lnorm=True, untie_r=True,
            vocab_size=61, cutoffs=(17, 40), div_val=2,
        ),
        Dialect(cluster_order="reversed", layer_norm_eps=1e-2),
    ),
    "wider_window": (
        tiny_config(
            mem_len=24, same_length=True, clamp_len=30, vocab_size=61, cutoffs=(17, 40), div_val=4,
            d_embed=32, tie_weight=False, tie_projs=(False, True, True),
        ),
        Dialect(initial_memory="zeros", window_extra=1),
    ),
    "zeros_pre_lnorm": (
        tiny_config(mem_len=24, clamp_len=24, pre_lnorm=True, vocab_size=61, cutoffs=(17, 40), d_embed=12),
        _ZEROS,
    ),
    "no_memory": (tiny_config(mem_len=0, untie_r=True), Dialect()),
    "short_memory": (tiny_config(mem_len=5, clamp_len=3, untie_r=True), _ZEROS),
    "deep": (tiny_config(mem_len=6, n_layer=11), Dialect()),
    "adaptive": (
        tiny_config(vocab_size=61, cutoffs=(17, 40), div_val=2, d_embed=20, tie_projs=(False, True, False)),
        _REVERSED,
    ),
    "plain": (tiny_config(), Dialect()),
    # What the runtime is tested with: a cut that matters, and one that does not.
    "stepping": (tiny_config(mem_len=12), Dialect()),
    "sliding": (tiny_config(mem_len=12, same_length=True, pre_lnorm=True, clamp_len=7), _ZEROS),
}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """A bundle and the checkpoint that it was made of."""

    path: Path
    checkpoint: Checkpoint

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @functools.cached_property
    def engine(self) -> Engine:
        return Engine.load(self.path, threads=1)

    @functools.cached_property
    def judge(self) -> Engine:
        return Engine.load(self.checkpoint, backend="eager", segment_len=Bundle.open(self.path).manifest.segment_len)


# What most tests of layout `ring` share: calls of several lengths, tokens that can be taken back.
RING_LENS, RING_CUT, RING_REWIND = (1, 4, 8), 8, 3


def exported_ring(
    exported: ExportFixture,
    name: str = "stepping",
    precision: str = "fp32",
    head: str | tuple[str, ...] = "log_probs",
) -> Exported:
    """The bundles of layout `ring` that tests share: one in fp32, one in fp16 that has fewer graphs."""
    lens = RING_LENS if precision == "fp32" else (1, 8)
    return exported(name, "ring", lens, head, precision=precision, segment_len=RING_CUT, rewind=RING_REWIND)


def untraced(
    name: str,
    folder: Path,
    head: str | tuple[str, ...] = "log_probs",
    precision: str = "fp32",
    segment_len: int = RING_CUT,
) -> Bundle:
    """A bundle of layout `ring` without its graphs, for backend `typed`: made in no time, from any model of MODELS."""
    from txl_export.graphs import export as exporting
    from txl_export.reference import TransformerXL

    checkpoint, lens = checkpoint_of(name), parse_segments(RING_LENS)
    policy = PrecisionPolicy(precision)
    manifest = exporting._plan(checkpoint, None, lens, "ring", policy, head, segment_len, 40, RING_REWIND)
    manifest = dataclasses.replace(manifest, files={WEIGHTS: {"bytes": 0, "sha256": ""}})
    exporting._write_initial(TransformerXL.from_checkpoint(checkpoint), manifest, folder / INITIAL)
    return Bundle(folder, manifest, checkpoint)


@functools.cache
def checkpoint_of(name: str) -> Checkpoint:
    """The random checkpoint of a model of MODELS."""
    return random_checkpoint(*MODELS[name], seed=sorted(MODELS).index(name), std=STD)


ExportFixture = Callable[..., Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportFixture:
    """exported(model, layout, segment_lens, head, precision, ...): the bundle, made now or taken from another test's.

    With calibrated=False everything is in the precision that can be. More names are numbers that `export` takes:
    segment_len, rewind, mem_len.
    """
    own = tmp_path_factory.getbasetemp()
    root = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "bundles"
    root.mkdir(exist_ok=True)

    @functools.cache
    def get(
        name: str,
        layout: str = "kv",
        segment_lens: tuple[int | str, ...] = ("1-64",),
        head: str | tuple[str, ...] = "log_probs",
        precision: str = "fp32",
        calibrated: bool = True,
        **more: int,
    ) -> Exported:
        from txl_export import export

        heads = [head] if isinstance(head, str) else head
        parts = [name, layout, *map(str, segment_lens), *heads, precision, *(f"{k}{n}" for k, n in more.items())]
        folder = root / "_".join(parts + ["everywhere"] * (not calibrated)).replace("@", "")
        with FileLock(f"{folder}.lock"):
            if not (folder / MANIFEST).is_file():
                checkpoint = checkpoint_of(name)
                policy = {"precision": precision} if calibrated else {"calibration": PrecisionPolicy(precision)}
                export(checkpoint, folder, segment_lens=segment_lens, layout=layout, head=head, **policy, **more)
        return Exported(folder, checkpoint_of(name))

    return get


def one_line(error: BaseException) -> str:
    """The message, which must be a single line that ends in no blank."""
    text = str(error)
    assert text and "\n" not in text and text == text.strip()
    return text


def same_arrays(a: dict[str, np.ndarray], b: dict[str, np.ndarray], rows: Iterable[int] | None = None) -> bool:
    """Equal names and bits, of some rows of the batch or of all."""
    index = slice(None) if rows is None else list(rows)
    return a.keys() == b.keys() and all(np.array_equal(a[k][index], b[k][index]) for k in a)
