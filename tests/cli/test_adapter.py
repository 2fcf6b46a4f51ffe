"""`--adapter`: one option wherever a checkpoint is read, and what is said of an adapter afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.peft_adapters import low_rank, module_names, save_adapter
from tests.cli.conftest import Run
from txl_export import load_checkpoint
from txl_export.named_configs import config_names


@pytest.fixture(scope="module")
def adapter(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = load_checkpoint(checkpoint).config
    return save_adapter(tmp_path_factory.mktemp("adapter") / "lora", low_rank(config, module_names(config)))


@pytest.fixture(scope="module")
def adapted(run: Run, checkpoint: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapted") / "bundle"
    result = run("export", checkpoint, "-o", out, "--adapter", adapter, "--segment-lens", "8")
    assert result.exit_code == 0, result.output
    return out


SAYS = "LoRA of rank 3, alpha 6 on 10 modules"


def test_inspect_says_what_was_merged(
    run: Run, checkpoint: Path, adapter: Path, adapted: Path, bundle: Path, tmp_path: Path
):
    found = json.loads(run("inspect", checkpoint, "--adapter", adapter, "--json").stdout)["adapters"]
    assert [(a["path"], a["ranks"], len(a["modules"])) for a in found] == [(str(adapter), [3], 10)]
    recorded = json.loads(run("inspect", adapted, "--json").stdout)["adapters"]
    assert [a["sha256"] for a in recorded] == [found[0]["sha256"]]
    for args in ((checkpoint, "--adapter", adapter), (adapted,)):
        output = " ".join(run("inspect", *args).stdout.split())
        assert SAYS in output and "layers.0-1.dec_attn.qkv_net" in output
    shutil.copytree(adapter, tmp_path / "second")
    twice = run("inspect", checkpoint, "--adapter", adapter, "--adapter", tmp_path / "second").stdout
    assert "adapter 1" in twice and "adapter 2" in twice
    for args in ((checkpoint,), (bundle,)):
        assert "adapter" not in run("inspect", *args).stdout


def test_a_bundle_is_the_adapted_model(run: Run, adapted: Path, checkpoint: Path, adapter: Path, text: Path):
    def nats(*args: object) -> float:
        return json.loads(run("score", *args, text, "--segment-len", 8, "--json").stdout)["nats_per_token"]

    with_it = nats(checkpoint, "--adapter", adapter)
    assert nats(adapted) == pytest.approx(with_it, rel=1e-5)
    assert abs(nats(checkpoint) - with_it) > 0.01
    assert run("verify", adapted, "--segments", 3).exit_code == 0
    assert run("verify", adapted, "--segments", 3, "--checkpoint", checkpoint, "--adapter", adapter).exit_code == 0


def test_convert_writes_one_model(run: Run, checkpoint: Path, adapter: Path, tmp_path: Path):
    assert run("convert", checkpoint, "--adapter", adapter, "-o", tmp_path / "out").exit_code == 0
    expected = load_checkpoint(checkpoint, adapter=adapter).weights
    found = load_checkpoint(tmp_path / "out").weights
    assert all(np.array_equal(found[n], w) for n, w in expected.items())


def test_where_an_adapter_cannot_go(run: Run, bundle: Path, adapter: Path, checkpoint: Path, text: Path):
    says = {
        "--adapter cannot change its graphs": ("score", bundle, text, "--adapter", adapter),
        "export again with --adapter": ("inspect", bundle, "--adapter", adapter),
        "no weights: leave out --adapter": ("inspect", config_names()[0], "--adapter", adapter),
        "does not exist": ("inspect", checkpoint, "--adapter", adapter / "gone"),
    }
    for says_so, args in says.items():
        result = run(*args)
        assert result.exit_code == 2, args
        assert says_so in result.output and len(result.output.strip().splitlines()) == 1
