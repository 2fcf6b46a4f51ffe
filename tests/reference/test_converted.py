"""Converted models in Hugging Face's own code."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.helpers import random_checkpoint, random_ids, tiny_config
from tests.huggingface_models import transformers
from txl_export import TransformerXL, convert
from txl_export.config import Dialect

CASES = {
    "reversed clusters": tiny_config(
        vocab_size=61, cutoffs=(17, 30, 40), div_val=2, tie_projs=(False, True, True, True)
    ),
    "untied": tiny_config(vocab_size=61, cutoffs=(17, 40), div_val=4, tie_weight=False, untie_r=True, pre_lnorm=True),
    "projected": tiny_config(
        cutoffs=(9, 17), d_embed=10, tie_projs=(False, True, False), same_length=True, clamp_len=4
    ),
}


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_huggingface_s_own_code_gives_the_same_numbers(tmp_path, config):
    source = random_checkpoint(config, Dialect("zeros", 0, "reversed", 1e-3), std=0.3)
    convert(source, tmp_path / "hf", "huggingface")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, info = transformers.TransfoXLLMHeadModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    ours, memory, mems = TransformerXL.from_checkpoint(source), None, None
    for seed in range(3):
        ids = torch.from_numpy(random_ids(config, 2, 8, seed))
        with torch.no_grad():
            expected, memory = ours(ids, memory)
            found = theirs.eval()(ids, mems=mems)
        mems = found.mems
        np.testing.assert_allclose(found.prediction_scores.numpy(), expected.numpy(), atol=2e-5)
