"""Every peer gives the reference's numbers, over calls that wrap the memory more than twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import JUDGE, PEERS, compile, peer_module
from benchmarks.peers.base import Start
from benchmarks.peers.check import answers
from benchmarks.peers.memory import MadeMemory
from benchmarks.shapes import SHAPES, open_shape
from tests.helpers import import_or_skip, random_checkpoint, tiny_config
from txl_export.checkpoints import huggingface, native
from txl_export.config import Dialect

import_or_skip("transformers", "Hugging Face's own model: pip install 'txl-export[parity]'")

M, L, B, CALLS = 6, 3, 2, 6
# The shapes of the benchmark, small: wt103's, the window and clamped distances of enwik8's, the shipped model's.
MODELS = {
    "words": (
        tiny_config(
            mem_len=20, same_length=True, clamp_len=4, vocab_size=61, cutoffs=(17, 30, 40),
            tie_projs=(False, True, True, True),
        ),
        Dialect(cluster_order="reversed"),
    ),
    "bytes": (tiny_config(mem_len=M, untie_r=True), Dialect()),
}  # fmt: skip
CASES = [("bytes", "huggingface"), *(("words", peer) for peer in ("huggingface", "compile", "plain-onnx"))]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("peers")
    return {name: native.save(folder / name, random_checkpoint(*of, std=0.3)) for name, of in MODELS.items()}


def built(peer: str, checkpoint: Path, folder: Path) -> Path:
    out = folder / peer
    out.mkdir()
    if PEERS[peer].built:
        peer_module(peer).build(checkpoint, out, M, [L])
    return out


def answers_of(peer: str, start: Start) -> np.ndarray:
    loaded, config = peer_module(peer).load(start), native.load(start.checkpoint).config
    width = config.d_model if PEERS[peer].layout == "hidden" else 2 * config.n_head * config.d_head
    spare = 8 + 7 if PEERS[peer].layout == "ring" else 0  # rows of a segment, and behind the ring
    assert loaded.memory_bytes == 4 * (start.mem_len + spare) * config.n_layer * width
    return answers(loaded, MadeMemory(config, start.mem_len, B), start.segment_len, CALLS)


@pytest.mark.parametrize(("model", "peer"), CASES, ids=str)
def test_numbers_are_the_references(model, peer, checkpoints, tmp_path, monkeypatch):
    # What is traced for the compiler is what counts here; compiling it takes half a minute.
    monkeypatch.setattr(compile, "BACKEND", "eager")
    start = Start(checkpoints[model], built(peer, checkpoints[model], tmp_path), tmp_path, M, L, B, threads=1)
    expected, found = answers_of(JUDGE, start), answers_of(peer, start)
    assert expected.shape == (CALLS, B, 2, MODELS[model][0].vocab_size)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("peer", "mem_len"), [("kv", 12), ("ring", 12), ("ring", 7)])
def test_our_numbers_are_the_references(exported, tmp_path, peer, mem_len):
    """A bundle of M = 12; one whose memory is written in place serves shorter ones too."""
    bundle = exported("stepping", peer, (1, 8))
    checkpoint = native.save(tmp_path / "checkpoint", bundle.checkpoint)
    start = Start(checkpoint, bundle.path, tmp_path, mem_len, 8, B, threads=1)
    np.testing.assert_allclose(answers_of(peer, start), answers_of(JUDGE, start), rtol=0, atol=2e-5)


def test_one_bundle_is_made_for_all_lengths(monkeypatch, tmp_path):
    import txl_export

    told = {}
    monkeypatch.setattr(txl_export, "export", lambda checkpoint, out, **how: told.update(how))
    path = native.save(tmp_path / "m", random_checkpoint(*MODELS["bytes"]))
    peer_module("ring").build(path, tmp_path / "out", 0, [])
    assert (told["mem_len"], told["segment_lens"], told["layout"]) == (3800, (1, 16, 64, 128), "ring")


@pytest.mark.parametrize("name", SHAPES)
def test_hugging_faces_configuration_is_the_shapes(name):
    from benchmarks.peers.huggingface import configuration

    shape = open_shape(name)
    config, dialect = huggingface.parse_config(configuration(shape.config, shape.dialect).to_dict())
    # Kept apart by the peer: it is given full memories, and the rows of clusters in its order.
    assert config.to_dict() == {**shape.config.to_dict(), "dropout": config.dropout, "dropatt": config.dropatt}
    assert (dialect.window_extra, dialect.layer_norm_eps) == (shape.dialect.window_extra, shape.dialect.layer_norm_eps)
