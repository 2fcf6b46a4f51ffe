"""Hugging Face folders whose weights are in several files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.checkpoints.test_huggingface import BASE, assert_loads_as, config_json, refused, their_tensors
from tests.helpers import random_weights

FORMS = {
    "safetensors": ("model", "model-{:05d}-of-00002.safetensors", "model.safetensors.index.json"),
    "bin": ("pytorch_model", "pytorch_model-{:05d}-of-00002.bin", "pytorch_model.bin.index.json"),
}


def save(path, tensors):
    if path.suffix == ".bin":
        torch.save({n: torch.from_numpy(np.array(w)) for n, w in tensors.items()}, path)
    else:
        save_file({n: np.ascontiguousarray(w) for n, w in tensors.items()}, path)


def sharded(folder, tensors, form, edit=lambda names: names):
    """A folder of two shards; `edit` changes the index's map."""
    folder.mkdir(exist_ok=True)
    _, pattern, index = FORMS[form]
    (folder / "config.json").write_text(json.dumps(config_json(BASE, dropout=0.0)))
    names = {name: pattern.format(1 + i % 2) for i, name in enumerate(tensors)}
    for i in (1, 2):
        file = pattern.format(i)
        save(folder / file, {n: w for n, w in tensors.items() if names[n] == file})
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": edit(dict(names))}))
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied tensors twice", "tied tensors absent"])
def test_all_shards_are_read(tmp_path, form, tied):
    weights = random_weights(BASE)
    tensors = their_tensors(BASE, weights)
    biases = ("transformer.r_", "transformer.layers.0.dec_attn.r_w_bias", "transformer.layers.0.dec_attn.r_r_bias")
    seconds = [f"crit.out_layers.{i}.weight" for i in range(3)] + ["crit.out_projs.1", "crit.out_projs.2"]
    kept = {n: w for n, w in tensors.items() if tied or not n.startswith((*biases, *seconds))}
    assert_loads_as(sharded(tmp_path / "x", kept, form), BASE, weights)


def test_one_whole_file_goes_before_shards(tmp_path):
    weights = random_weights(BASE)
    folder = sharded(tmp_path / "x", their_tensors(BASE, random_weights(BASE, seed=1)), "safetensors")
    save(folder / "model.safetensors", their_tensors(BASE, weights))
    assert_loads_as(folder, BASE, weights)


def test_a_shard_that_is_missing_lacks_a_tensor_or_lies_elsewhere(tmp_path):
    tensors = their_tensors(BASE)
    first = next(iter(tensors))
    folder = sharded(tmp_path / "a", tensors, "safetensors")
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    refused(folder, "model-00002-of-00002.safetensors is missing", "index.json names it")
    shard.write_bytes(content[:-4])
    refused(folder, "not a readable safetensors file")
    swap = {first: "model-00002-of-00002.safetensors"}
    refused(sharded(tmp_path / "b", tensors, "safetensors", lambda m: m | swap), f"lacks {first}", "another save")
    (tmp_path / "model.safetensors").write_bytes(b"")
    for outside in ("../model.safetensors", "/etc/passwd", "", "a/b"):
        refused(
            sharded(tmp_path / "c", tensors, "safetensors", lambda m, o=outside: m | {first: o}), "only plain names"
        )


def test_a_tensor_in_two_shards(tmp_path):
    tensors = their_tensors(BASE)
    folder = sharded(tmp_path / "x", tensors, "safetensors")
    save(folder / "model-00002-of-00002.safetensors", tensors)
    refused(folder, "as another shard does")


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "{", '{"weight_map": 3}']
)
def test_an_index_that_is_none(tmp_path, content):
    folder = sharded(tmp_path / "x", their_tensors(BASE), "safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, "model.safetensors.index.json")
