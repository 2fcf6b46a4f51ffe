"""Every peer gives the reference's numbers, over calls that wrap the memory more than twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import JUDGE, PEERS, peer_module
from benchmarks.peers.base import Start
from benchmarks.peers.check import answers
from benchmarks.peers.memory import MadeMemory
from tests.helpers import import_or_skip, random_checkpoint, tiny_config
from txl_export.checkpoints import native
from txl_export.config import Dialect

import_or_skip("transformers", "Hugging Face's own model: pip install 'txl-export[parity]'")

M, L, B = 6, 3, 2
# The shapes of the benchmark, small: a window and clamped distances; the shipped model has neither.
MODELS = {
    "bytes": (tiny_config(mem_len=M, untie_r=True), Dialect()),
    "window": (tiny_config(mem_len=20, same_length=True, clamp_len=4), Dialect(cluster_order="reversed")),
    "words": (
        tiny_config(
            same_length=True, clamp_len=4, vocab_size=61, cutoffs=(17, 30, 40), tie_projs=(False, True, True, True)
        ),
        Dialect(cluster_order="reversed"),
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory) -> Path:
    config, dialect = MODELS[request.param]
    folder = tmp_path_factory.mktemp("peers") / request.param
    return native.save(folder, random_checkpoint(config, dialect, std=0.3))


def answers_of(name: str, checkpoint: Path, folder: Path) -> np.ndarray:
    module, built = peer_module(name), folder / name
    if PEERS[name].built:
        built.mkdir()
        module.build(checkpoint, built, M, [L])
    peer = module.load(Start(checkpoint, built, folder, M, L, B, threads=1))
    config = native.load(checkpoint).config
    specs = PEERS[name].layout
    assert peer.memory_bytes == 4 * M * config.n_layer * {"hidden": 16, "kv": 2 * 12}[specs]
    return answers(peer, MadeMemory(config, M, B), L, calls=6)


def test_numbers_are_the_references(checkpoint, tmp_path):
    expected = answers_of(JUDGE, checkpoint, tmp_path)
    assert expected.shape == (6, 2, 2, native.load(checkpoint).config.vocab_size)
    for name in PEERS:
        if name != JUDGE:
            np.testing.assert_allclose(
                answers_of(name, checkpoint, tmp_path), expected, rtol=0, atol=2e-5, err_msg=name
            )
