"""The reference in float32 against Hugging Face's own TransfoXLLMHeadModel, over files that it saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers import random_ids
from tests.huggingface_models import all_pairs, huggingface_model, pairs_of, pairwise, save_model
from txl_export import load_checkpoint
from txl_export.reference import TransformerXL

SEGMENTS = (5, 7, 1, 16, 3, 12, 2, 9, 1, 20, 8, 4)  # M = 12: it wraps seven times
OPTIONS = {
    "div_val": [1, 2, 4],
    "cutoffs": [(), (20,), (15, 30)],
    "same_length": [False, True],
    "clamp_len": [-1, 5],
    "untie_r": [False, True],
    "pre_lnorm": [False, True],
    "d_embed": [64, 32],
    "tie_projs": ["all but first", "none", "first only"],
    "tie_word_embeddings": [True, False],
    "layer_norm_epsilon": [1e-5, 1e-3],
    "n_layer": [2, 3],
    "safetensors": [True, False],
}
ROWS = pairwise(OPTIONS)


def name_of(row):
    return "-".join(str(v).replace(" ", "_") for v in row.values())


def test_every_pair_of_options_occurs():
    assert set().union(*(pairs_of(row) for row in ROWS)) == all_pairs(OPTIONS)
    assert len(ROWS) <= 24


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_log_probs_and_memories_are_hugging_faces(row, tmp_path):
    options = dict(row)
    safetensors, tied = options.pop("safetensors"), options.pop("tie_projs")
    n_tails = len(options["cutoffs"])
    tie_projs = {
        "all but first": [False] + [True] * n_tails,
        "none": [False] * (n_tails + 1),
        "first only": [True] + [False] * n_tails,
    }[tied]
    theirs = huggingface_model(tie_projs=tie_projs, **options | {"cutoffs": list(options["cutoffs"])})
    folder = save_model(theirs, tmp_path / "saved", safetensors)
    assert (folder / "model.safetensors").exists() == safetensors

    checkpoint = load_checkpoint(folder)
    assert checkpoint.origin == "huggingface"
    ours = TransformerXL.from_checkpoint(checkpoint)
    memory, mems, consumed = None, None, 0
    for seed, length in enumerate(SEGMENTS):
        ids = torch.from_numpy(random_ids(checkpoint.config, 3, length, seed))
        with torch.no_grad():
            log_probs, memory = ours(ids, memory)
            output = theirs(ids, mems=mems)
        mems, consumed = output.mems, consumed + length
        worst = (log_probs - output.prediction_scores).abs().max().item()
        assert worst < 5e-5, f"segment {seed}: {worst:.1e}"
    assert consumed > 7 * checkpoint.config.mem_len
    for rows, expected in zip(memory.hidden, mems, strict=True):
        expected = expected.transpose(0, 1)
        np.testing.assert_allclose(rows.numpy(), expected.numpy(), rtol=0, atol=1e-5 * expected.abs().max().item())


def test_the_comparison_would_see_a_wrong_dialect(tmp_path):
    """The same model with one evaluation value changed is far outside of the tolerance."""
    theirs = huggingface_model(cutoffs=[15, 30], same_length=True)
    folder = save_model(theirs, tmp_path / "saved", safetensors=True)
    wrong = (
        {"initial_memory": "empty"},
        {"window_extra": 1},
        {"cluster_order": "reversed"},
        {"clamp_len": 5},
        {"same_length": False},
        {"mem_len": 11},
    )
    ids = torch.from_numpy(random_ids(load_checkpoint(folder).config, 3, 16))
    expected = theirs(ids).prediction_scores
    for overrides in wrong:
        ours = TransformerXL.from_checkpoint(load_checkpoint(folder, overrides=overrides))
        assert (ours(ids)[0] - expected).abs().max() > 1e-3, overrides
