"""Bundles of files of `torch.save`: the judge is found again, read as it was read for the export."""

from __future__ import annotations

import shlex

import numpy as np

from tests.checkpoints.torch_models import CONFIGS, make
from tests.helpers import random_ids
from txl_export import Bundle, Engine, export, load_checkpoint
from txl_export.judge import judge_of
from txl_export.reporting.commands import export_command


def test_a_state_dict_is_judged_as_it_was_read(tmp_path):
    path, _ = make("state dict", tmp_path / "model.pt", CONFIGS["one_proj"])
    given = {"cutoffs": [9, 17], "pre_lnorm": True, "mem_len": 5, "same_length": True, "cluster_order": "reversed"}
    checkpoint = load_checkpoint(path, overrides=given)
    export(checkpoint, tmp_path / "bundle", segment_lens=(4,), layout="hidden")
    bundle = Bundle.open(tmp_path / "bundle")
    judge, notes = judge_of(bundle)
    assert (judge.config, judge.dialect, judge.origin, notes) == (
        checkpoint.config,
        checkpoint.dialect,
        "kimiyoung",
        (),
    )
    words = shlex.split(export_command(bundle))
    said = {words[i + 1] for i, word in enumerate(words) if word == "--set"}
    assert said == {"cutoffs=[9, 17]", "pre_lnorm=true", 'cluster_order="reversed"'}
    assert "--same-length" in words and words[words.index("--mem-len") + 1] == "5"
    # A reversed cluster order, a window and pre-LN: the graph does what the judge does.
    ids = random_ids(checkpoint.config, 2, 24)
    session = Engine.load(bundle, threads=1).session(batch_size=2)
    expected = Engine.load(judge, backend="eager", mem_len=5).session(batch_size=2)
    for n in range(0, 24, 4):
        found = session.feed(ids[:, n : n + 4])
        assert np.allclose(found, expected.feed(ids[:, n : n + 4], segment_len=4), atol=1e-5)
