"""Random models against judges of other making: the equations of the paper, and the code of Hugging Face."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.helpers import random_ids
from tests.huggingface_models import huggingface_model, save_model
from tests.random_models import LONGEST, STREAMS, examples, random_config, random_history, random_model
from tests.reference.naive import NaiveStream
from txl_export import load_checkpoint
from txl_export.backends.eager import EagerModel
from txl_export.calls import cut
from txl_export.runtime import Engine


@examples(8)
def test_sessions_of_the_reference_are_the_papers_equations(rng):
    """In float64, with streams that start anew while others go on."""
    checkpoint, history = random_model(rng), random_history(rng, longest=9, most=4)
    session = Engine(EagerModel(checkpoint, None, LONGEST).double()).session(STREAMS)
    theirs = [NaiveStream(checkpoint) for _ in range(STREAMS)]
    for i, step in enumerate(history):
        session.reset(step.reset)
        theirs = [NaiveStream(checkpoint) if b in step.reset else s for b, s in enumerate(theirs)]
        ids = random_ids(checkpoint.config, STREAMS, step.length, i)
        found = session.feed(ids, step.segment_len)
        for b, stream in enumerate(theirs):
            rows, start = [], 0
            for n in cut(step.length, step.segment_len):
                rows.append(stream.segment(list(ids[b, start : start + n])))
                start += n
            np.testing.assert_allclose(found[b], np.concatenate(rows), rtol=1e-6, atol=1e-6)  # float32 answers
            for n, layer in enumerate(session.memory(b)):
                np.testing.assert_allclose(layer, stream.memory(n), rtol=0, atol=1e-9)


@examples(12)
def test_files_of_hugging_face_run_as_its_own_code_runs_them(rng):
    config, history = random_config(rng, dropout=0.1), random_history(rng)
    if not config.mem_len:
        config = dataclasses.replace(config, same_length=False)  # no key to see
    names = ("vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val", "pre_lnorm")
    options = {n: getattr(config, n) for n in (*names, "untie_r", "mem_len", "clamp_len", "same_length")}
    theirs = huggingface_model(
        std=0.3, cutoffs=list(config.cutoffs), tie_projs=list(config.tie_projs), tie_word_embeddings=config.tie_weight,
        layer_norm_epsilon=1e-3, **options,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = load_checkpoint(save_model(theirs, Path(folder) / "saved", safetensors=config.untie_r))
    assert checkpoint.config == config
    ours = Engine.load(checkpoint, backend="eager").session(STREAMS)
    mems = None
    for i, step in enumerate(history):
        ours.reset(step.reset)
        for rows in mems or ():
            rows[:, sorted(step.reset)] = 0
        ids = random_ids(config, STREAMS, step.length, i)
        found, expected, start = ours.feed(ids, step.segment_len), [], 0
        for n in cut(step.length, step.segment_len):
            output = theirs(torch.from_numpy(ids[:, start : start + n]), mems=mems)
            expected.append(output.prediction_scores)
            mems, start = output.mems, start + n
        np.testing.assert_allclose(found, torch.cat(expected, 1).numpy(), rtol=0, atol=1e-4)
        for b in range(STREAMS if config.mem_len else 0):
            for layer, rows in zip(ours.memory(b), mems, strict=True):
                wanted = rows[:, b].numpy()
                np.testing.assert_allclose(layer, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))
