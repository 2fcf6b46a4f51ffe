"""The arithmetic of `cost` against numbers worked out by hand."""

from __future__ import annotations

from txl_export.config import ModelConfig
from txl_export.cost import body_parameters, export_bytes, position_rows, token_cost
from txl_export.weights import count_parameters

# Widths that share no factor by accident: h = n_head * d_head = 6.
SHAPE = {"n_layer": 3, "n_head": 2, "d_model": 4, "d_head": 3, "d_inner": 5}
PLAIN = ModelConfig(vocab_size=11, **SHAPE)
ADAPTIVE = ModelConfig(vocab_size=20, cutoffs=(8, 12), div_val=2, d_embed=8, tie_projs=(False, True, True), **SHAPE)


def test_a_token_in_layout_kv():
    # M = 9, so 10 keys. Each line: layers x multiplications, and 2 FLOPs per multiplication.
    assert token_cost(PLAIN, 9, "kv").flops == {
        "embedding": 0,
        "projections": 2 * 3 * (4 * 4 * 6),  # query, key, value, output: 4 x 6 each
        "content": 2 * 3 * (10 * 6),
        "positions": 2 * 3 * (10 * 6),
        "values": 2 * 3 * (10 * 6),
        "feed_forward": 2 * 3 * (2 * 4 * 5),
        "softmax": 2 * (11 * 4),
    }
    assert token_cost(PLAIN, 9, "kv").total_flops == 576 + 3 * 360 + 240 + 88


def test_layout_hidden_projects_the_memory_again():
    hidden, kv = token_cost(PLAIN, 9, "hidden"), token_cost(PLAIN, 9, "kv")
    assert hidden.flops["projections"] == 2 * 3 * (2 * 4 * 6 + 2 * 10 * 4 * 6)
    assert {k: v for k, v in hidden.flops.items() if k != "projections"} == {
        k: v for k, v in kv.flops.items() if k != "projections"
    }
    assert (hidden.memory_bytes, kv.memory_bytes) == (3 * 9 * 4 * 4, 3 * 2 * 9 * 6 * 4)


def test_all_clusters_of_an_adaptive_softmax_are_computed():
    flops = token_cost(ADAPTIVE, 9, "kv").flops
    # Widths 8, 4, 2 for 8, 4 and 8 tokens; two more rows in the first cluster; one projection to each width.
    assert flops["softmax"] == 2 * ((8 + 2) * 8 + 4 * 4 + 8 * 2 + 4 * (8 + 4 + 2))
    assert flops["embedding"] == 2 * 4 * (8 + 4 + 2)


def test_clamped_distances_share_a_row():
    clamped = ModelConfig(vocab_size=11, clamp_len=5, **SHAPE)
    assert token_cost(clamped, 9, "kv").flops["positions"] == 2 * 3 * (6 * 6)
    assert [position_rows(clamped, M, longest=4) for M in (9, 5, 4)] == [6, 6, 8]
    saved = token_cost(PLAIN, 9, "kv").weight_bytes - token_cost(clamped, 9, "kv").weight_bytes
    assert saved == 4 * 3 * (10 - 6) * 6


def test_every_weight_is_read_once():
    # Per layer: query, key, value, output 4 x 24; feed forward 40 + 5 + 4; two norms 16; table 10 x 6.
    layers = 3 * (96 + 49 + 16 + 60)
    shared = 12  # u and v of all layers
    assert token_cost(PLAIN, 9, "kv").weight_bytes == 4 * (layers + shared + 11 * 4 + 11)
    assert token_cost(PLAIN, 9, "kv").bytes_read == 4 * (layers + shared + 55) + 3 * 2 * 9 * 6 * 4


def test_of_an_untied_embedding_one_row_is_read():
    untied = ModelConfig(vocab_size=11, tie_weight=False, **SHAPE)
    assert token_cost(untied, 9, "kv").weight_bytes == token_cost(PLAIN, 9, "kv").weight_bytes + 4 * 4


def test_parameters_of_the_layers_alone():
    assert body_parameters(PLAIN) == 12 + 3 * (5 * 24 + 49 + 16)
    assert count_parameters(PLAIN) - body_parameters(PLAIN) == 11 * 4 + 11


def test_a_bundle_holds_position_tables_in_place_of_their_projection():
    grown = export_bytes(PLAIN, 9, 4, graphs=2) - export_bytes(PLAIN, 9, 3, graphs=2)
    assert grown == 4 * 3 * 6
    assert export_bytes(PLAIN, 9, 4, graphs=0) == 4 * (count_parameters(PLAIN) + 3 * (13 * 6 - 24))


def test_no_memory():
    cost = token_cost(PLAIN, 0, "kv")
    assert cost.memory_bytes == 0
    assert cost.flops["content"] == 2 * 3 * 6
