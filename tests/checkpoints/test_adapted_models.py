"""Adapted models, exported: the numbers are those of base and adapter run side by side, over many segments."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import txl_export as txl
from tests.bundles import one_line
from tests.checkpoints.peft_adapters import low_rank, module_names, run_beside, save_adapter
from tests.checkpoints.torch_models import CONFIGS, make
from tests.helpers import random_ids
from tests.huggingface_models import huggingface_model, save_model
from txl_export.checkpoints import native
from txl_export.checkpoints.adapters.applying import unmerged
from txl_export.errors import InputError, ToleranceError
from txl_export.judge import judge_of
from txl_export.reference.unmerged import Unmerged
from txl_export.reporting.commands import export_command

CUTS = (5, 1, 7, 3, 8, 2, 6, 8, 4, 7, 8, 1, 8)  # 68 tokens, several times n_layer x M


@dataclass(frozen=True)
class Case:
    base: Path
    adapter: Path
    expected: np.ndarray  # of base and adapter side by side
    ids: np.ndarray


def segments(ids: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, np.cumsum(CUTS)[:-1], axis=1)


def of_huggingface(folder: Path) -> Case:
    """Hugging Face's own code with the adapter in its modules; the embedding is tied to the softmax."""
    model = huggingface_model(cutoffs=[20, 40], div_val=2, pre_lnorm=True, mem_len=6)
    base = save_model(model, folder / "base", safetensors=True)
    config = txl.load_checkpoint(base).config
    modules = [*module_names(config, "transformer."), "transformer.word_emb.emb_layers.1"]
    tensors = low_rank(config, modules)
    ids = random_ids(config, 2, sum(CUTS))
    run_beside(model, tensors)
    mems, found = None, []
    for part in segments(ids):
        out = model(input_ids=torch.from_numpy(part), mems=mems)
        mems = out.mems
        found.append(out.logits)
    return Case(base, save_adapter(folder / "adapter", tensors), torch.cat(found, 1).numpy(), ids)


def of_kimiyoung(folder: Path) -> Case:
    """The authors' code is not here: the reference runs the adapter, with DoRA, beside the weights."""
    folder.mkdir()
    base, _ = make("module", folder / "model.pt", CONFIGS["one_proj"])
    checkpoint = txl.load_checkpoint(base)
    tensors = low_rank(checkpoint.config, module_names(checkpoint.config), dora=True)
    adapter = save_adapter(folder / "adapter", tensors, use_dora=True)
    ids = random_ids(checkpoint.config, 2, sum(CUTS))
    apart, updates = unmerged(checkpoint, [adapter])
    model = txl.TransformerXL.from_checkpoint(apart)
    with Unmerged(model, updates):
        expected = in_eager(model, ids)
    return Case(base, adapter, expected, ids)


def in_eager(model: txl.TransformerXL, ids: np.ndarray) -> np.ndarray:
    memory, found = None, []
    for part in segments(ids):
        log_probs, memory = model(torch.from_numpy(part), memory)
        found.append(log_probs)
    return torch.cat(found, 1).numpy()


ORIGINS = {"huggingface": of_huggingface, "kimiyoung": of_kimiyoung}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    made = {}

    def get(origin: str) -> Case:
        if origin not in made:
            made[origin] = ORIGINS[origin](tmp_path_factory.mktemp("adapted") / origin)
        return made[origin]

    return get


@pytest.fixture(scope="module")
def bundles(tmp_path_factory, cases):
    made = {}

    def get(origin: str, layout: str) -> txl.Bundle:
        if (origin, layout) not in made:
            case, out = cases(origin), tmp_path_factory.mktemp("bundles") / "bundle"
            checkpoint = txl.load_checkpoint(case.base, adapter=case.adapter)
            made[origin, layout] = txl.export(checkpoint, out, segment_lens=("1-8",), layout=layout)
        return made[origin, layout]

    return get


@pytest.mark.parametrize("layout", ["hidden", "kv"])
@pytest.mark.parametrize("origin", list(ORIGINS))
def test_bundles_give_what_base_and_adapter_give_side_by_side(cases, bundles, origin, layout):
    case = cases(origin)
    base = in_eager(txl.TransformerXL.from_checkpoint(txl.load_checkpoint(case.base)), case.ids)
    assert np.abs(base - case.expected).max() > 0.5  # the adapter matters
    session = txl.Engine.load(bundles(origin, layout), threads=1).session(batch_size=2)
    found = np.concatenate([session.feed(part) for part in segments(case.ids)], axis=1)
    assert np.abs(found - case.expected).max() < 1e-4


def test_the_reference_runs_adapters_as_modules_do(cases):
    case = cases("huggingface")
    apart, updates = unmerged(txl.load_checkpoint(case.base), [case.adapter])
    model = txl.TransformerXL.from_checkpoint(apart)
    with Unmerged(model, updates):
        assert np.abs(in_eager(model, case.ids) - case.expected).max() < 5e-5


@pytest.mark.parametrize("dora", [False, True])
def test_several_adapters_side_by_side(tmp_path, cases, dora):
    """Each is added to what the one before gives; DoRA's lengths are of that, too."""
    base = txl.load_checkpoint(cases("kimiyoung").base)
    modules = [*module_names(base.config), "word_emb.emb_layers.0"]
    folders = [
        save_adapter(tmp_path / f"{i}", low_rank(base.config, modules, seed=i, dora=d), use_dora=d)
        for i, d in enumerate([False, dora, dora])
    ]
    apart, updates = unmerged(base, folders)
    model, ids = txl.TransformerXL.from_checkpoint(apart), random_ids(base.config, 2, sum(CUTS))
    with Unmerged(model, updates):
        expected = in_eager(model, ids)
    merged = txl.load_checkpoint(cases("kimiyoung").base, adapter=folders)
    assert [a.path for a in merged.adapters] == folders
    assert np.abs(in_eager(txl.TransformerXL.from_checkpoint(merged), ids) - expected).max() < 1e-4


def test_a_merge_that_is_off_is_not_exported(tmp_path, cases, monkeypatch):
    from txl_export.checkpoints.adapters import applying

    case, right = cases("kimiyoung"), applying.merged_matrix
    monkeypatch.setattr(applying, "merged_matrix", lambda w, update: right(w, update) * np.float32(1.01))
    checkpoint = txl.load_checkpoint(case.base, adapter=case.adapter)
    with pytest.raises(ToleranceError) as e:
        txl.export(checkpoint, tmp_path / "bundle")
    assert str(case.adapter) in one_line(e.value) and "unmerged" in str(e.value)
    assert not list(tmp_path.iterdir())


def moved(bundle: txl.Bundle, folder: Path, case: Case) -> tuple[txl.Bundle, Path]:
    """The bundle with its base and adapter at the same places in another folder, and that adapter."""
    shutil.copytree(bundle.path, folder / "bundle")
    recorded = json.loads((bundle.path / "manifest.json").read_text())["judge"]
    here = (folder / "bundle").resolve()
    for source, path in ((case.base, recorded["path"]), (case.adapter, recorded["adapters"][0]["path"])):
        target = Path(path if Path(path).is_absolute() else here / path).resolve()
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    return txl.Bundle.open(folder / "bundle"), target


def test_the_judge_is_base_and_adapter(tmp_path, cases, bundles):
    case, bundle = cases("kimiyoung"), bundles("kimiyoung", "kv")
    report = txl.verify(bundle, random=0, segments=12, segment_len=8)
    assert report.passed and report.checkpoint == f"{case.base.resolve()} with {case.adapter.resolve()}"
    judge, notes = judge_of(bundle)
    assert [a.path for a in judge.adapters] == [case.adapter.resolve()] and notes == ()
    # Named again, or taken from elsewhere: the same model.
    assert txl.verify(bundle, case.base, random=0, segments=2, segment_len=8, adapter=case.adapter).passed
    assert judge_of(bundle, case.base)[0].adapters == judge.adapters
    # The model without its adapter is another model.
    plain = txl.load_checkpoint(case.base)
    assert not txl.verify(bundle, plain, random=0, segments=2, segment_len=8).passed
    assert f"--adapter {case.adapter.resolve()}" in export_command(bundle)


def test_an_adapter_that_changed_or_went(tmp_path, cases, bundles):
    case = cases("kimiyoung")
    (tmp_path / "a" / "b").mkdir(parents=True)
    bundle, adapter = moved(bundles("kimiyoung", "kv"), tmp_path / "a" / "b", case)
    assert tmp_path in adapter.parents
    assert judge_of(bundle)[1] == ()
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 12}))
    assert judge_of(bundle)[1] == (f"the adapter {adapter} has changed since the export",)
    assert not txl.verify(bundle, random=0, segments=2, segment_len=8).passed
    shutil.copy(case.adapter / "adapter_config.json", adapter)
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({n: t * np.float32(1.5) for n, t in tensors.items()}, adapter / "adapter_model.safetensors")
    assert judge_of(bundle)[1] == (f"the adapter {adapter} has changed since the export",)
    shutil.rmtree(adapter)
    with pytest.raises(InputError) as e:
        judge_of(bundle)
    assert "the adapter of" in one_line(e.value) and "--adapter" in str(e.value)
    assert judge_of(bundle, adapter=case.adapter)[1] == ()


def test_a_kept_checkpoint_has_the_adapter_merged(tmp_path, cases, bundles):
    case = cases("kimiyoung")
    shutil.copytree(bundles("kimiyoung", "kv").path, tmp_path / "bundle")
    checkpoint = txl.load_checkpoint(case.base, adapter=case.adapter)
    native.save(tmp_path / "bundle" / "checkpoint", checkpoint)  # as keep_checkpoint does
    bundle = txl.Bundle.open(tmp_path / "bundle")
    judge, notes = judge_of(bundle)
    assert judge.adapters == () and notes == ()
    assert all(np.array_equal(judge.weights[n], w) for n, w in checkpoint.weights.items())
    assert "--adapter" not in export_command(bundle)
    assert judge_of(bundle, case.base)[0].adapters == checkpoint.adapters  # a base that is named lacks it


def test_converted_it_is_one_model(tmp_path, cases):
    """Base and adapter leave as a plain checkpoint, the softmax apart from the adapted embedding."""
    case = cases("huggingface")
    adapted = txl.load_checkpoint(case.base, adapter=case.adapter)
    assert not adapted.config.tie_weight
    txl.convert(adapted, tmp_path / "out", "huggingface")
    again = txl.load_checkpoint(tmp_path / "out")
    assert again.adapters == () and again.config == adapted.config
    assert all(np.array_equal(again.weights[n], w) for n, w in adapted.weights.items())
