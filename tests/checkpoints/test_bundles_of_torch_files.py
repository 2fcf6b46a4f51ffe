"""Bundles of files of `torch.save`: the judge is found again, read as it was read for the export."""

from __future__ import annotations

import dataclasses
import json
import shlex

from tests.checkpoints.torch_models import CONFIGS, make
from txl_export import Bundle, load_checkpoint
from txl_export.graphs.export import _judge
from txl_export.judge import judge_of
from txl_export.reporting.commands import export_command


def test_a_state_dict_is_judged_as_it_was_read(tmp_path, exported):
    path, _ = make("state dict", tmp_path / "model.pt", CONFIGS["one_proj"])
    given = {"cutoffs": [9, 17], "pre_lnorm": True, "mem_len": 5, "same_length": True, "cluster_order": "forward"}
    checkpoint = load_checkpoint(path, overrides=given)
    # The manifest that exporting this checkpoint would write, as far as the judge matters.
    recorded = json.loads(json.dumps(_judge(checkpoint, tmp_path / "bundle")))
    about = {"config": checkpoint.config, "dialect": checkpoint.dialect, "mem_len": 5, "judge": recorded}
    manifest = dataclasses.replace(Bundle.open(exported("stepping", "kv", (1, 8)).path).manifest, **about)
    bundle = Bundle(tmp_path / "bundle", manifest)

    judge, notes = judge_of(bundle)
    assert (judge.config, judge.dialect, judge.origin, notes) == (
        checkpoint.config,
        checkpoint.dialect,
        "kimiyoung",
        (),
    )
    words = shlex.split(export_command(bundle))
    said = {words[i + 1] for i, word in enumerate(words) if word == "--set"}
    assert said == {"cutoffs=[9, 17]", "pre_lnorm=true", 'cluster_order="forward"'}
    assert "--same-length" in words and words[words.index("--mem-len") + 1] == "5"
