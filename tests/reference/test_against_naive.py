"""The PyTorch reference in double precision against `naive.py`, and what each field of a dialect changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.helpers import random_checkpoint, random_ids, tiny_config
from tests.reference.naive import NaiveStream
from txl_export.checkpoints import Checkpoint
from txl_export.config import Dialect
from txl_export.reference import Memory, TransformerXL

SEGMENTS = (3, 1, 9, 5, 2)  # M = 6: shorter and longer than the memory
TAILS = {"cutoffs": (9, 17), "div_val": 2}
CASES = {
    "paper": ({}, {}),
    "same_length": ({"same_length": True}, {}),
    "window_extra": ({"same_length": True}, {"window_extra": 1}),
    "no_memory": ({"mem_len": 0}, {}),
    "no_memory_same_length": ({"mem_len": 0, "same_length": True}, {"window_extra": 1}),
    "one_row": ({"mem_len": 1, "same_length": True}, {}),
    "long_memory": ({"mem_len": 40}, {}),
    "long_zeros": ({"mem_len": 21, "same_length": True}, {"initial_memory": "zeros"}),
    "clamp_len": ({"clamp_len": 4}, {}),
    "clamp_len_1": ({"clamp_len": 1, "same_length": True}, {}),
    "untie_r": ({"untie_r": True}, {}),
    "pre_lnorm": ({"pre_lnorm": True}, {}),
    "zeros": ({}, {"initial_memory": "zeros"}),
    "zeros_pre_lnorm": ({"pre_lnorm": True, "clamp_len": 3}, {"initial_memory": "zeros"}),
    "plain_cutoffs": ({"cutoffs": (9, 17)}, {}),
    "reversed": ({"cutoffs": (9, 17)}, {"cluster_order": "reversed"}),
    "reversed_div": (TAILS | {"tie_projs": (False, True, True)}, {"cluster_order": "reversed"}),
    "div_4": ({"cutoffs": (5, 12, 20), "div_val": 4, "d_embed": 64}, {"cluster_order": "reversed"}),
    "tie_projs": (TAILS | {"tie_projs": (True, False, True)}, {}),
    "untied": (TAILS | {"tie_weight": False}, {}),
    "d_embed": ({"d_embed": 10, "tie_projs": (True,)}, {}),
    "d_embed_cutoffs": ({"d_embed": 10, "cutoffs": (9, 17), "tie_projs": (False, True, False)}, {}),
    "odd_heads": ({"n_head": 3, "d_head": 5, "n_layer": 1}, {}),
    "eps": ({}, {"layer_norm_eps": 1e-2}),
}


def double_model(checkpoint: Checkpoint) -> TransformerXL:
    return TransformerXL.from_checkpoint(checkpoint).double()


def run_both(checkpoint: Checkpoint, batch_size: int = 2) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Log-probabilities of each segment from the reference and from naive streams, and the memories' difference."""
    model = double_model(checkpoint)
    streams = [NaiveStream(checkpoint) for _ in range(batch_size)]
    ours, theirs, memory, worst = [], [], None, 0.0
    for seed, length in enumerate(SEGMENTS):
        ids = random_ids(checkpoint.config, batch_size, length, seed)
        log_probs, memory = model(torch.from_numpy(ids), memory)
        ours.append(log_probs.numpy())
        theirs.append(np.stack([s.segment(list(row)) for s, row in zip(streams, ids, strict=True)]))
        for n, rows in enumerate(memory.hidden):
            expected = np.stack([s.memory(n) for s in streams])
            assert rows.shape == expected.shape
            worst = max(worst, np.abs(rows.numpy() - expected).max(initial=0))
    return ours, theirs, worst


@pytest.mark.parametrize("case", CASES)
def test_reference_equals_the_papers_equations(case):
    config, dialect = CASES[case]
    ours, theirs, memory_error = run_both(random_checkpoint(tiny_config(**config), Dialect(**dialect), std=0.3))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)
        np.testing.assert_allclose(np.exp(a).sum(-1), 1, atol=1e-12)
    assert memory_error < 1e-9


FIELDS = {
    "initial_memory": ({}, {"initial_memory": "zeros"}),
    "window_extra": ({"same_length": True}, {"window_extra": 1}),
    "cluster_order": ({"cutoffs": (9, 17)}, {"cluster_order": "reversed"}),
    "layer_norm_eps": ({}, {"layer_norm_eps": 1e-3}),
    "clamp_len": ({}, {"clamp_len": 4}),
    "same_length": ({}, {"same_length": True}),
}


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_changes_the_numbers_as_the_equations_say(field):
    base, change = FIELDS[field]
    checkpoint = random_checkpoint(tiny_config(**base), std=0.3)
    in_config = field in {f.name for f in dataclasses.fields(checkpoint.config)}
    part = "config" if in_config else "dialect"
    changed = dataclasses.replace(checkpoint, **{part: dataclasses.replace(getattr(checkpoint, part), **change)})
    before, _, _ = run_both(checkpoint)
    after, naive, _ = run_both(changed)
    moved = max(np.abs(a - b).max() for a, b in zip(before, after, strict=True))
    assert moved > 1e-3
    assert max(np.abs(a - b).max() for a, b in zip(after, naive, strict=True)) < 1e-9


def test_small_eps_shows_in_the_memories():
    config = tiny_config()
    memories = []
    for eps in (1e-5, 1e-12):
        checkpoint = random_checkpoint(config, Dialect(layer_norm_eps=eps), std=0.3)
        _, memory = double_model(checkpoint)(torch.from_numpy(random_ids(config, 2, 6)))
        memories.append(memory.hidden[-1])
        stream = NaiveStream(checkpoint)
        stream.segment(list(random_ids(config, 2, 6)[0]))
        np.testing.assert_allclose(memory.hidden[-1][0].numpy(), stream.memory(1), rtol=0, atol=1e-12)
    assert (memories[0] - memories[1]).abs().max() > 1e-7


@pytest.mark.parametrize("same_length", [False, True])
def test_streams_of_one_batch_equal_each_alone(same_length):
    config = tiny_config(same_length=same_length, clamp_len=5)
    model = double_model(random_checkpoint(config, std=0.3))
    ids = torch.from_numpy(random_ids(config, 3, 40))
    starts = (0, 4, 9)  # tokens each stream has missed
    # Alone: each stream reads only its own tokens.
    lone = []
    for b, start in enumerate(starts):
        memory, out = None, []
        for i in range(start, 40, 3):
            log_probs, memory = model(ids[b : b + 1, i : i + 3], memory)
            out.append(log_probs)
        lone.append((torch.cat(out, 1)[:, -6:], memory))
    # Together: rows of another stream's junk in front, of which `filled` says that none count.
    M = config.mem_len
    hidden = [torch.randn(3, M, config.d_model, dtype=torch.float64) * 50 for _ in range(config.n_layer)]
    filled = torch.zeros(3, dtype=torch.int64)
    for b, (_, last) in enumerate(lone):
        short = last.hidden[0].shape[1] - b * 2  # differently filled
        filled[b] = short
        for n in range(config.n_layer):
            hidden[n][b, M - short :] = last.hidden[n][0, -short:]
    together, after = model(ids[:, :4], Memory(tuple(hidden), filled))
    for b, (_, last) in enumerate(lone):
        short = int(filled[b])
        alone = Memory(tuple(h[:, -short:] for h in last.hidden), torch.tensor([short]))
        expected, memory = model(ids[b : b + 1, :4], alone)
        torch.testing.assert_close(together[b], expected[0], rtol=0, atol=1e-12)
        counted = int(after.filled[b])
        assert counted == int(memory.filled[0]) == min(M, short + 4)
        for n in range(config.n_layer):
            torch.testing.assert_close(
                after.hidden[n][b, M - counted :], memory.hidden[n][0, -counted:], rtol=0, atol=1e-12
            )
