"""The arithmetic of `cost` against numbers worked out by hand."""

from __future__ import annotations

from txl_export.config import ModelConfig
from txl_export.cost import body_parameters, call_cost, compared_layouts, export_bytes, position_rows, token_cost
from txl_export.precision import Choice, PrecisionPolicy
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


def test_layout_ring_reads_its_whole_buffer():
    ring, kv = token_cost(PLAIN, 9, "ring", rows=9 + 8 + 7), token_cost(PLAIN, 9, "kv")
    assert ring.memory_bytes == 3 * 2 * 24 * 6 * 4
    assert ring.flops == kv.flops | dict.fromkeys(("content", "positions", "values"), 2 * 3 * (24 * 6))
    assert ring.weight_bytes == kv.weight_bytes + 4 * 3 * 6 * (24 - 10)
    usual = token_cost(PLAIN, 9, "ring")  # what export makes: calls and segments of up to 64 tokens
    assert usual.memory_bytes == 3 * 2 * (9 + 64 + 63) * 6 * 4
    clamped = ModelConfig(vocab_size=11, clamp_len=5, **SHAPE)
    assert token_cost(clamped, 9, "ring").weight_bytes == token_cost(clamped, 9, "kv").weight_bytes


def test_a_layout_is_compared_with_the_papers():
    assert [compared_layouts(own) for own in ("ring", "kv", "hidden")] == [
        ("hidden", "ring"), ("hidden", "kv"), ("hidden", "ring"),
    ]  # fmt: skip


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


def test_one_token_of_one_stream_is_a_call():
    for config in (PLAIN, ADAPTIVE, ModelConfig(vocab_size=11, clamp_len=5, **SHAPE)):
        assert call_cost(config, 9) == token_cost(config, 9, "kv")


def test_a_call_of_a_segment_and_several_streams():
    # M = 9, L = 4, B = 2: the queries of a stream see 10, 11, 12 and 13 keys, 46 in all.
    cost = call_cost(PLAIN, 9, segment_len=4, batch_size=2)
    assert cost.flops == {
        "embedding": 0,
        "projections": 2 * 8 * 3 * (4 * 4 * 6),
        "content": 2 * 2 * 3 * (46 * 6),
        "positions": 2 * 2 * 3 * (46 * 6),
        "values": 2 * 2 * 3 * (46 * 6),
        "feed_forward": 2 * 8 * 3 * (2 * 4 * 5),
        "softmax": 2 * 8 * (11 * 4),
    }
    # Weights are read once for all streams; distances up to M + L - 1 have a row each; memories are each stream's.
    assert cost.weight_bytes == token_cost(PLAIN, 9, "kv").weight_bytes + 4 * 3 * 3 * 6
    assert cost.memory_bytes == 2 * token_cost(PLAIN, 9, "kv").memory_bytes


def test_clamped_distances_of_a_segment():
    clamped = ModelConfig(vocab_size=11, clamp_len=10, **SHAPE)
    # Of 10, 11, 12 and 13 keys no more than 11 have different rows; clamp_len above M keeps M + L rows.
    assert call_cost(clamped, 9, 4).flops["positions"] == 2 * 3 * 6 * (10 + 11 + 11 + 11)
    assert call_cost(clamped, 9, 4).weight_bytes == call_cost(PLAIN, 9, 4).weight_bytes
    closer = ModelConfig(vocab_size=11, clamp_len=5, **SHAPE)
    assert call_cost(PLAIN, 9, 4).weight_bytes - call_cost(closer, 9, 4).weight_bytes == 4 * 3 * 6 * (13 - 6)
    assert call_cost(closer, 9, 4).flops["content"] == call_cost(PLAIN, 9, 4).flops["content"]


def test_a_window_bounds_the_keys_of_every_query():
    assert call_cost(PLAIN, 9, 4, window=9).flops["content"] == 2 * 3 * 6 * (4 * 9)
    assert call_cost(PLAIN, 0, 4, window=1).flops["values"] == 2 * 3 * 6 * 4


def test_the_last_position_alone_spares_softmax_and_most_of_the_last_layer():
    full, last = call_cost(PLAIN, 9, 4), call_cost(PLAIN, 9, 4, head="log_probs@last")
    assert last.flops == {
        "embedding": 0,
        "projections": 2 * (2 * 4 * (4 * 4 * 6) + 4 * (2 * 4 * 6) + 2 * 4 * 6),  # two layers, keys and values, a query
        "content": 2 * 6 * (2 * 46 + 13),
        "positions": 2 * 6 * (2 * 46 + 13),
        "values": 2 * 6 * (2 * 46 + 13),
        "feed_forward": 2 * (2 * 4 + 1) * (2 * 4 * 5),
        "softmax": 2 * (11 * 4),
    }
    assert (last.weight_bytes, last.memory_bytes) == (full.weight_bytes, full.memory_bytes)


def test_heads_need_the_clusters_that_they_cannot_do_without():
    full = call_cost(ADAPTIVE, 9)
    assert call_cost(ADAPTIVE, 9, head="logits") == full
    for head in ("target", "top_k"):
        found = call_cost(ADAPTIVE, 9, head=head)
        assert found.flops["softmax"] == 2 * ((8 + 2) * 8 + 4 * 8)  # shortlist and cluster entries, one projection
        # Not read: tables and biases of the tails, of 4 x 4 and 8 x 2, and the tail's projection of its own, none here.
        assert full.weight_bytes - found.weight_bytes == 4 * (4 * 4 + 8 * 2 + 4 + 8)
        assert call_cost(PLAIN, 9, head=head) == call_cost(PLAIN, 9)  # one cluster, which must be normalised
    features = call_cost(ADAPTIVE, 9, 3, 2, head="features")
    assert features.flops["softmax"] == 0
    # Nothing of the softmax: shortlist, its bias, the clusters' entries and its untied projection; but the rows of
    # six tokens, at least of the narrowest table.
    dropped = 8 * 8 + 8 + 2 * 8 + 2 + 4 * 8
    target = call_cost(ADAPTIVE, 9, 3, 2, head="target")
    assert target.weight_bytes - features.weight_bytes == 4 * (dropped - 6 * 2)


def test_every_weight_of_an_adaptive_softmax_is_read_once():
    # All parameters but W_kR, and the tables in its place: nothing is shared with what is read twice.
    heads = 6
    expected = count_parameters(ADAPTIVE) - 3 * heads * 4 + 3 * 10 * heads
    assert call_cost(ADAPTIVE, 9).weight_bytes == 4 * expected


def test_weights_are_read_in_the_precision_they_are_stored_in():
    wide = ModelConfig(vocab_size=11, **SHAPE | {"d_model": 100, "d_inner": 410})
    full = call_cost(wide, 9).weight_bytes
    few = call_cost(wide, 9, policy=PrecisionPolicy("int8", {"layers.1.W_1": Choice("fp32")})).weight_bytes
    # Rows of 100 lie in one block of 128 with its scale, rows of 410 in 13 blocks of 32, and rows of 6 in one of 16.
    saved = 3 * 18 * (400 - 132) + 3 * 100 * (24 - 20) + 2 * 410 * (400 - 132) + 3 * 100 * (1640 - 13 * 36)
    assert full - few == saved + 11 * (400 - 132)
    half = call_cost(wide, 9, policy=PrecisionPolicy.uniform("fp16"))
    assert (2 * half.weight_bytes, 2 * half.memory_bytes) == (full, call_cost(wide, 9).memory_bytes)
