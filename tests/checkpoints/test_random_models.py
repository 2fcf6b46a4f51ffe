"""Random models written as each origin writes them: what is loaded is the model, in the origin's dialect."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import assume

from tests.checkpoints import tensorflow_bundles, test_huggingface
from tests.checkpoints.test_kimiyoung import assert_same_weights
from tests.checkpoints.torch_models import FORMS, KIMIYOUNG, NVIDIA
from tests.helpers import random_weights
from tests.random_models import examples, random_config, random_dialect
from txl_export import convert, load_checkpoint
from txl_export.checkpoints import Checkpoint, native
from txl_export.config import OVERRIDABLE_CONFIG, OVERRIDABLE_DIALECT, Dialect, ModelConfig

Weights = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """How an origin writes a model.

    Attributes:
        write: takes a new folder, the configuration and the weights; returns what to load.
        dialect: the origin's.
        cannot: what the origin has only one value for, or leaves no trace of.
        unsaid: names that its files do not hold.
    """

    write: Callable[[Path, ModelConfig, Weights], Path]
    dialect: Dialect
    cannot: dict[str, Any]
    unsaid: tuple[str, ...] = ()


def of_torch(form: str) -> Callable[[Path, ModelConfig, Weights], Path]:
    def write(folder: Path, config: ModelConfig, weights: Weights) -> Path:
        FORMS[form](folder / "model.pt", config, weights)
        return folder / "model.pt"

    return write


def huggingface(binary: bool) -> Callable[[Path, ModelConfig, Weights], Path]:
    def write(folder: Path, config: ModelConfig, weights: Weights) -> Path:
        tensors = test_huggingface.their_tensors(config, weights)
        return test_huggingface.write(folder, config, tensors, binary, dropout=0.0)

    return write


def tensorflow(folder: Path, config: ModelConfig, weights: Weights) -> Path:
    return tensorflow_bundles.write_bundle(folder / "model", tensorflow_bundles.their_tensors(config, weights))


EVALUATION = ("mem_len", "clamp_len", "same_length")
SHARED = {"untie_r": False}  # one u and v
STATE_DICT = ("pre_lnorm", *EVALUATION)
HUGGINGFACE = Dialect(initial_memory="zeros")
TENSORFLOW = Dialect("zeros", 1, "forward", 1e-12)
ORIGINS = {
    "kimiyoung module": Form(of_torch("module"), KIMIYOUNG, SHARED),
    "kimiyoung old module": Form(of_torch("old module"), KIMIYOUNG, SHARED),
    "kimiyoung state dict": Form(of_torch("state dict"), KIMIYOUNG, SHARED, STATE_DICT),
    "nvidia": Form(of_torch("nvidia"), NVIDIA, SHARED),
    "huggingface safetensors": Form(huggingface(False), HUGGINGFACE, {}),
    "huggingface .bin": Form(huggingface(True), HUGGINGFACE, {}),
    "tensorflow": Form(tensorflow, TENSORFLOW, {"tie_weight": True, "pre_lnorm": False}, EVALUATION),
}


def writable(config: ModelConfig, form: Form) -> ModelConfig:
    """The configuration, changed to one that the origin can have; rejected where its files leave it open."""
    config = dataclasses.replace(config, **form.cannot)
    if form.dialect == TENSORFLOW and not config.n_tails:
        config = dataclasses.replace(config, tie_projs=(True,))
    if form.unsaid:
        # Tensors tell div_val by the widths of tables: not of a single one, and 3 and 1 may be a half or a third.
        widths = [config.cluster_width(i) for i in range(config.n_tails + 1)]
        assume(config.div_val == 1 or (len(widths) > 1 and widths[0] // widths[1] == config.div_val))
    return config


def without_idle_fields(config: ModelConfig) -> ModelConfig:
    """The configuration with one value for what plays no part in it: ties of projections that there are not."""
    return config if config.has_projs else dataclasses.replace(config, tie_projs=())


@examples(30)
def test_what_origins_write_is_what_is_loaded(rng):
    origin = rng.choice(list(ORIGINS))
    form = ORIGINS[origin]
    config = writable(random_config(rng), form)
    weights = random_weights(config, seed=rng.randint(0, 99))
    unsaid = {name: getattr(config, name) for name in form.unsaid}
    if form.dialect == KIMIYOUNG and form.unsaid and config.div_val == 1:
        unsaid["cutoffs"] = list(config.cutoffs)  # of one table for all clusters
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_checkpoint(form.write(Path(folder), config, weights), overrides=unsaid)
        assert (loaded.origin, loaded.dialect, loaded.assumed) == (origin.split()[0], form.dialect, {})
        assert without_idle_fields(loaded.config) == without_idle_fields(config)
        assert_same_weights(loaded.weights, weights)


@examples(20)
def test_a_native_copy_keeps_everything_and_overrides_replace_it(rng):
    config = random_config(rng)
    dialect = random_dialect(rng, config)
    others = {**random_config(rng).to_dict(), **random_dialect(rng, config).to_dict()}
    overrides = {n: others[n] for n in OVERRIDABLE_CONFIG + OVERRIDABLE_DIALECT if rng.random() < 0.5}
    weights = random_weights(config)
    with tempfile.TemporaryDirectory() as folder:
        native.save(Path(folder) / "a", Checkpoint(config, dialect, weights))
        loaded = load_checkpoint(Path(folder) / "a", overrides=overrides)
        convert(loaded, Path(folder) / "b")
        copy = load_checkpoint(Path(folder) / "b")
    kept = {**config.to_dict(), **dialect.to_dict()}
    assert {**loaded.config.to_dict(), **loaded.dialect.to_dict()} == kept | overrides
    assert (copy.config, copy.dialect) == (loaded.config, loaded.dialect)
    assert_same_weights(copy.weights, weights)
