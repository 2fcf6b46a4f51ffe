"""Which precision a product gets, and how a person overrules it."""

import json

import pytest

from tests.bundles import one_line
from txl_export.errors import InputError
from txl_export.number_types import FORMATS
from txl_export.precision import Choice, PrecisionPolicy, choose


@pytest.mark.parametrize(
    ("name", "precision", "operands", "result", "expected", "says"),
    [
        ("layers.0.W_1", "fp16", 3.0, 8000.0, "fp16", "holds 8e+03"),
        ("layers.0.W_1", "fp16", 3.0, 8200.0, "fp32", "largest in fp16"),
        ("layers.0.W_1", "fp16", 8200.0, 3.0, "fp32", "largest in fp16"),  # an operand overflows too
        ("layers.0.W_1", "bf16", 3.0, 1e30, "bf16", "holds"),
        ("layers.0.W_1", "fp16", float("inf"), 1.0, "fp32", "inf"),
        ("layers.0.W_1", "bf16", 1.0, float("inf"), "fp32", "inf"),
        # A score or logit of x is good to half a unit in its last place.
        ("layers.0.content", "fp16", 1.0, 63.0, "fp16", "holds"),
        ("layers.0.content", "fp16", 1.0, 65.0, "fp32", "rounds 65 by up to 0.031 nats"),
        ("layers.0.positions", "fp16", 1.0, 2025.3, "fp32", "rounds 2.03e+03 by up to 0.5 nats"),
        ("logits", "bf16", 1.0, 65.0, "fp32", "0.25 nats"),
        ("layers.0.values", "fp16", 1.0, 2025.3, "fp16", "holds"),  # feeds no exponential
        ("layers.0.content", "fp16", 0.0, 0.0, "fp16", "holds 0"),
    ],
)
def test_a_product_is_in_half_where_half_holds_and_resolves_it(name, precision, operands, result, expected, says):
    choice = choose(name, precision, operands, result)
    assert choice.precision == expected
    assert says in choice.why


def test_names_may_hold_wildcards_and_the_last_word_is_the_users():
    calibrated = PrecisionPolicy("fp16", {"layers.1.W_1": Choice("fp32", 1e5, 1e5, "too large")}, "text")
    policy = calibrated.overridden({"layers.*.content": "fp32", "layers.1.W_1": "fp16", "residual": "fp16"}, 2)
    assert [policy.of(f"layers.{n}.content") for n in (0, 1)] == ["fp32", "fp32"]
    assert policy.of("layers.1.W_1") == "fp16"
    assert policy.choices["layers.1.W_1"] == Choice("fp16", 1e5, 1e5, "overridden")  # what was seen is kept
    assert (policy.dtype("residual"), policy.dtype("norm"), policy.dtype("memory")) == ("float16", "float32", "float16")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"layers.2.W_1": "fp32"}, "layers.N.W_1"),
        ({"logits": "bf16"}, "use fp32 or fp16"),
        ({"logits": "half"}, "'half'"),
    ],
)
def test_what_cannot_be_overruled_is_one_line(tensors, says):
    with pytest.raises(InputError) as e:
        PrecisionPolicy("fp16").overridden(tensors, n_layer=2)
    assert says in one_line(e.value)


def test_a_policy_survives_json_and_tells_people_what_is_in_fp32():
    wide = [Choice("fp32", 7e4, 7e4, "7e+04 is too large"), Choice("fp32", 9e4, 9e4, "9e+04 is too large")]
    policy = PrecisionPolicy("fp16", {"layers.0.W_2": wide[0], "layers.3.W_2": wide[1], "logits": Choice("fp16")}, "t")
    assert PrecisionPolicy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    about, *exceptions = policy.describe()
    assert "fp16, chosen on t; memory fp16, residual fp32" in about
    assert exceptions == ["fp32: W_2 of layers 0, 3: 9e+04 is too large"]
    assert PrecisionPolicy().describe() == []


def test_few_bits_are_for_weights_and_leave_all_else_in_fp32():
    policy = PrecisionPolicy("int8").overridden({"layers.*.W_1": "fp32", "logits": "int8"}, 2)
    few = ("embedding", "layers.0.W_qkv", "layers.1.W_o", "layers.1.W_2", "logits")
    assert {policy.of(name) for name in few} == {"int8"}
    full = ("layers.0.W_1", "layers.0.content", "layers.1.positions", "layers.0.values", "memory", "norm", "residual")
    assert {policy.of(name) for name in full} == {"fp32"}
    assert {policy.dtype(name) for name in (*few, *full)} == {"float32"}
    assert [policy.format(name) for name in ("logits", "layers.0.W_1", "memory")] == [FORMATS["int8"], None, None]
    assert PrecisionPolicy.uniform("int4") == PrecisionPolicy("int4")
    assert PrecisionPolicy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert policy.describe() == [
        "int8, not calibrated; weights only, all else fp32",
        "fp32: W_1 of layers 0, 1: overridden",
    ]


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (
            {"layers.*.content": "int8"},
            "only weights of the model have (embedding, W_qkv, W_o, W_1, W_2, logits): use fp32",
        ),
        ({"memory": "int8"}, "memory cannot be in 'int8'"),
        ({"memory": "fp16"}, "memory cannot be in 'fp16' in a bundle of int8"),
        ({"logits": "int4"}, "logits cannot be in 'int4' in a bundle of int8: use fp32 or int8"),
    ],
)
def test_what_cannot_be_in_few_bits_is_one_line(tensors, says):
    with pytest.raises(InputError) as e:
        PrecisionPolicy("int8").overridden(tensors, n_layer=2)
    assert says in one_line(e.value)
