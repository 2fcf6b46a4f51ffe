"""Configurations: checks, round trips, overrides, and the published ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.helpers import tiny_config
from txl_export.config import Dialect, ModelConfig, apply_overrides
from txl_export.errors import ConfigError
from txl_export.named_configs import config_names, named_config
from txl_export.reference import TransformerXL
from txl_export.weights import count_parameters, weight_shapes

BAD_FIELDS = [
    ("vocab_size", 0), ("vocab_size", 2.0), ("vocab_size", "29"), ("vocab_size", True), ("vocab_size", None),
    ("n_layer", 0), ("n_layer", -1), ("n_head", 0), ("d_model", 15), ("d_model", 0), ("d_head", 0), ("d_inner", 0),
    ("d_embed", -1), ("div_val", 0), ("div_val", 1.5), ("mem_len", -1), ("mem_len", 1.0), ("mem_len", None),
    ("clamp_len", 1.5), ("clamp_len", None), ("dropout", 1.0), ("dropout", -0.1), ("dropout", "0"),
    ("dropatt", float("nan")), ("dropatt", True), ("attn_type", 1), ("attn_type", 3), ("attn_type", False),
    ("cutoffs", [30]), ("cutoffs", [29]), ("cutoffs", [0]), ("cutoffs", [9, 9]), ("cutoffs", [9, 5]),
    ("cutoffs", ["9"]), ("cutoffs", [9.5]), ("cutoffs", 9), ("cutoffs", "9"), ("cutoffs", None),
    ("tie_projs", [True, True]), ("tie_projs", ["false"]), ("tie_projs", True), ("tie_projs", [1]),
    ("tie_weight", "yes"), ("pre_lnorm", None), ("untie_r", 1), ("same_length", "false"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS, ids=lambda x: repr(x))
def test_a_bad_field_is_named(name, value):
    with pytest.raises(ConfigError, match=name) as e:
        tiny_config(**{name: value})
    assert len(str(e.value).splitlines()) == 1 and repr(value).strip("[]()") in str(e.value)


BAD_DIALECTS = [
    ("initial_memory", "none"), ("initial_memory", None), ("initial_memory", []), ("window_extra", 2),
    ("window_extra", True), ("window_extra", 1.0), ("window_extra", "1"), ("cluster_order", "backward"),
    ("layer_norm_eps", 0), ("layer_norm_eps", 1), ("layer_norm_eps", "1e-5"), ("layer_norm_eps", float("nan")),
    ("layer_norm_eps", None), ("layer_norm_eps", -1e-5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_DIALECTS, ids=lambda x: repr(x))
def test_a_bad_dialect_is_named(name, value):
    with pytest.raises(ConfigError, match=name):
        Dialect(**{name: value})


def test_a_width_must_remain_for_the_last_cluster():
    with pytest.raises(ConfigError, match="div_val"):
        tiny_config(cutoffs=(5, 9, 20), div_val=4)
    assert tiny_config(cutoffs=(5, 9), div_val=4).cluster_width(2) == 1


def test_derived_defaults():
    config = tiny_config(cutoffs=[5, 9])
    assert config.d_embed == config.d_model
    assert config.tie_projs == (False, False, False)
    assert config.cluster_ends == (0, 5, 9, 29)


def test_round_trips():
    config = tiny_config(cutoffs=(5, 9), div_val=2, tie_projs=(False, True, True), same_length=True)
    assert ModelConfig.from_dict(config.to_dict()) == config
    dialect = Dialect("zeros", 1, "reversed", 1e-12)
    assert Dialect.from_dict(dialect.to_dict()) == dialect


def test_unknown_and_missing_names():
    with pytest.raises(ConfigError, match="n_layers"):
        ModelConfig.from_dict(tiny_config().to_dict() | {"n_layers": 3})
    with pytest.raises(ConfigError, match="lacks d_model, vocab_size"):
        ModelConfig.from_dict({k: v for k, v in tiny_config().to_dict().items() if k not in ("d_model", "vocab_size")})
    with pytest.raises(ConfigError, match="origin"):
        Dialect.from_dict({"origin": "nvidia"})


def test_overrides():
    config, dialect = apply_overrides(
        tiny_config(),
        Dialect(),
        {"mem_len": 3, "clamp_len": 2, "same_length": True, "initial_memory": "zeros", "window_extra": None},
    )
    assert (config.mem_len, config.clamp_len, config.same_length) == (3, 2, True)
    assert dialect == Dialect(initial_memory="zeros")
    assert apply_overrides(tiny_config(), Dialect(), None) == (tiny_config(), Dialect())
    with pytest.raises(ConfigError, match="n_layer"):
        apply_overrides(tiny_config(), Dialect(), {"n_layer": 3})
    with pytest.raises(ConfigError, match="mem_len"):
        apply_overrides(tiny_config(), Dialect(), {"mem_len": -3})


def test_window():
    config = tiny_config(same_length=True)
    assert Dialect().window(tiny_config(), 6) is None
    assert Dialect().window(config, 6) == 6
    assert Dialect(window_extra=1).window(config, 6) == 7
    assert Dialect(window_extra=1).window(config, 0) == 1
    with pytest.raises(ConfigError, match="mem_len of 1 or more"):
        Dialect().window(config, 0)


@pytest.mark.parametrize("n_tails", [1, 2, 3])
def test_cluster_rows_are_a_permutation(n_tails):
    for order in ("forward", "reversed"):
        rows = [Dialect(cluster_order=order).cluster_row(t, n_tails) for t in range(n_tails)]
        assert rows == (list(range(n_tails)) if order == "forward" else list(range(n_tails))[::-1])


PUBLISHED = {
    "kimiyoung/wt103-base": 151e6,
    "kimiyoung/wt103-large": 285e6,
    "kimiyoung/enwik8-base": 41e6,
    "kimiyoung/enwik8-large": 277e6,
    "kimiyoung/text8-large": 277e6,
    "kimiyoung/lm1b-large": 0.84e9,
    "nvidia/wt103-base": 192e6,
    "nvidia/wt103-large": 285e6,
    "huggingface/transfo-xl-wt103": 285e6,
}


def test_all_named_configs_are_checked():
    assert sorted(PUBLISHED) == config_names()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    config, dialect = named_config(name)
    count, unit = count_parameters(config), 1e7 if PUBLISHED[name] > 5e8 else 1e6
    assert round(count / unit) == round(PUBLISHED[name] / unit)
    with torch.device("meta"):
        model = TransformerXL(config, dialect)
    assert sum(p.numel() for p in model.parameters()) == count
    assert all(p.is_meta for p in model.parameters())


def test_named_dialects_are_those_that_checkpoints_of_the_origin_are_read_with():
    from txl_export.checkpoints import kimiyoung, nvidia
    from txl_export.checkpoints.huggingface import parse_config

    assert named_config("kimiyoung/wt103-base")[1] == Dialect(**kimiyoung._DIALECT)
    assert named_config("nvidia/wt103-large")[1] == nvidia._DIALECT
    # An empty config.json has the defaults of transformers, which are this model's.
    config, dialect = parse_config({})
    named, theirs = named_config("huggingface/transfo-xl-wt103")
    assert dialect == theirs and dataclasses.replace(config, dropout=0.0) == named


def test_evaluation_values_of_published_models():
    values = {name: named_config(name)[0] for name in PUBLISHED}
    found = {name: (c.mem_len, c.clamp_len, c.same_length) for name, c in values.items()}
    assert found == {
        "kimiyoung/wt103-base": (640, 400, True),
        "kimiyoung/wt103-large": (1600, 1000, True),
        "kimiyoung/enwik8-base": (2100, 820, True),
        "kimiyoung/enwik8-large": (3800, 1000, True),
        "kimiyoung/text8-large": (3800, 1000, True),
        "kimiyoung/lm1b-large": (128, -1, True),
        "nvidia/wt103-base": (640, 400, True),
        "nvidia/wt103-large": (1600, 1000, True),
        "huggingface/transfo-xl-wt103": (1600, 1000, True),
    }


def test_unknown_names_list_those_alike_or_all():
    with pytest.raises(ConfigError, match=r"'wt103-base': use kimiyoung/wt103-base or nvidia/wt103-base$"):
        named_config("wt103-base")
    with pytest.raises(ConfigError, match=r"huggingface/transfo-xl-wt103, kimiyoung/enwik8-base, .*nvidia/wt103-large"):
        named_config("wt103")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"untie_r": True, "pre_lnorm": True},
        {"cutoffs": (5, 9), "div_val": 2, "tie_projs": (False, True, True)},
        {"cutoffs": (5, 9), "tie_weight": False, "tie_projs": (True, False, True), "d_embed": 10},
        {"d_embed": 10},
        {"cutoffs": (5, 9), "tie_weight": False, "div_val": 2},
    ],
    ids=repr,
)
def test_state_dict_has_the_canonical_names_and_shapes(changes):
    config = tiny_config(**changes)
    state = TransformerXL(config).state_dict()
    assert {n: tuple(t.shape) for n, t in state.items()} == weight_shapes(config)
    assert list(state) == list(weight_shapes(config))
    assert count_parameters(config) == sum(int(np.prod(t.shape)) for t in state.values())


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_config().mem_len = 3
