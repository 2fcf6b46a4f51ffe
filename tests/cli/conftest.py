"""A small random byte model on disk, and the bundle that the command line makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.helpers import random_checkpoint, tiny_config
from txl_export.backends import cuda
from txl_export.checkpoints import native
from txl_export.cli import main
from txl_export.vocabulary import ByteVocabulary

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has: what is chosen and said of it would differ."""
    monkeypatch.setattr(cuda, "devices", list)


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs the command line: `run("score", bundle, file)`."""

    def call(*args: object, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(main, [str(a) for a in args], input=stdin)

    return call


def byte_model(folder: Path, seed: int, with_vocab: bool = True) -> Path:
    # same_length: two graphs run every length, so that no third one must be traced
    config = tiny_config(vocab_size=256, d_model=32, mem_len=12, same_length=True)
    checkpoint = random_checkpoint(config, seed=seed, std=0.3)
    return native.save(folder, dataclasses.replace(checkpoint, vocab=ByteVocabulary() if with_vocab else None))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_model(tmp_path_factory.mktemp("model") / "bytes", seed=1)


@pytest.fixture(scope="session")
def wordless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model, without a vocabulary."""
    return byte_model(tmp_path_factory.mktemp("wordless") / "ids", seed=2, with_vocab=False)


@pytest.fixture(scope="session")
def exported(run: Run, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What `export --json` answered; tracing takes seconds, so it runs once per worker."""
    out = tmp_path_factory.mktemp("bundle") / "kv"
    return run("export", checkpoint, "-o", out, "--segment-lens", "1,8", "--json")


@pytest.fixture(scope="session")
def bundle(exported: Result) -> Path:
    import json

    assert exported.exit_code == 0, exported.output
    return Path(json.loads(exported.stdout)["bundle"])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes("Nicht alles, was zählt, kann gezählt werden.\n".encode() * 2)
    return path
