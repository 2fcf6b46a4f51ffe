"""Verify as a user meets it: good bundles pass, any damage fails and is placed."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tests.bundles import ExportFixture, one_line
from tests.helpers import random_checkpoint, tiny_config
from txl_export import InputError, TxlError, export, verify
from txl_export.bundle import MANIFEST, WEIGHTS, Bundle, digest, file_entry
from txl_export.checkpoints import Checkpoint, native
from txl_export.cli import main
from txl_export.files import read_json, write_json
from txl_export.judge import judge_of
from txl_export.vocabulary import ByteVocabulary

SEGMENTS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A byte model's checkpoint folder and its bundle, which names it as the judge."""
    root = tmp_path_factory.mktemp("verify")
    config = tiny_config(vocab_size=256, mem_len=8, n_layer=3, untie_r=True)
    loose = random_checkpoint(config, std=0.3)
    native.save(root / "model", Checkpoint(config, loose.dialect, loose.weights, vocab=ByteVocabulary()))
    export(native.load(root / "model"), root / "bundle", segment_lens=("4",), segment_len=4)
    return root / "model", root / "bundle"


def damaged(bundle: Path, target: Path, part: str, shape: list[int], at: tuple[int | slice, ...]) -> Path:
    """A copy with a weight changed and the hash refreshed: the tensor of that shape in that part of the graph."""
    shutil.copytree(bundle, target)
    manifest = read_json(target / MANIFEST, TxlError)
    graph = onnx.load(target / "log_probs.L4.onnx", load_external_data=False).graph
    tensor = next(t for t in graph.initializer if t.name.startswith(part) and list(t.dims) == shape)
    offset = next(int(e.value) for e in tensor.external_data if e.key == "offset")
    data = np.memmap(target / WEIGHTS, np.float32, "r+", offset, tuple(shape))
    data[at] += 1.0
    data.flush()
    manifest["files"][WEIGHTS] = file_entry(target / WEIGHTS)
    write_json(target / MANIFEST, manifest | {"digest": digest(manifest)})
    return target


ALL = slice(None)
# One number of one matrix; of the embedding one of every token, since few tokens are seen.
DAMAGES = [
    ("opening.embedding", [256, 16], (ALL, 3), "layer 0 is the first whose memory differs"),
    ("layers.1.", [36, 16], (12, 5), "layer 1 is the first whose memory differs"),  # a key
    ("layers.1.", [36, 16], (35, 5), "layer 1 is the first whose memory differs"),  # a value
    ("layers.1.", [24, 16], (3, 5), "layer 2 is the first whose memory differs"),  # W_1: seen by the next layer
    ("layers.2.", [16, 24], (3, ALL), "every layer's memory agrees"),  # W_2 of the last layer; some units are idle
]


def test_a_good_bundle_passes_on_text_ids_and_random_tokens(made: tuple[Path, Path]) -> None:
    text = b"import os\nfor name in os.listdir('.'):\n    print(name)\n" * 20
    ids = np.random.default_rng(1).integers(0, 256, (2, 200))
    for source in ({"text": text}, {"ids": ids, "batch_size": 2}, {"random": 3, "batch_size": 3}):
        report = verify(made[1], segments=SEGMENTS, **source)
        assert report.passed, report.failure
        assert len(report.segments) == SEGMENTS
        assert 0 < report.max_abs < 1e-4
        assert all(0 <= share < 1e-5 for s in report.segments for share in s.memory)
        assert len(report.segments[0].memory) == 3
    found, expected = report.perplexities
    assert found == pytest.approx(expected, rel=1e-6) and found > 100


def test_perplexity_is_that_of_the_text(made: tuple[Path, Path]) -> None:
    from txl_export import Engine

    text = b"the quick brown fox jumps over the lazy dog"
    report = verify(made[1], text=text, segments=10)
    nats = Engine.load(made[1]).score(np.frombuffer(text[:41], np.uint8), segment_len=4)
    assert report.perplexities[0] == pytest.approx(np.exp(nats), rel=1e-6)


@pytest.mark.parametrize(("part", "shape", "at", "place"), DAMAGES)
def test_one_changed_number_fails_with_exit_1_and_names_the_place(
    made: tuple[Path, Path], tmp_path: Path, part: str, shape: list[int], at: tuple[int, int], place: str
) -> None:
    bad = damaged(made[1], tmp_path / "bad", part, shape, at)
    args = ["verify", str(bad), "--checkpoint", str(made[0]), "--random", "0", "--segments", "6"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 1
    error = result.stderr.strip().splitlines()[-1]
    assert error.startswith("error: segment 0 (token 0): log_probs differs by") and error.endswith(place)


def test_json_of_a_failure_is_json(made: tuple[Path, Path], tmp_path: Path) -> None:
    bad = damaged(made[1], tmp_path / "bad", *DAMAGES[1][:3])
    args = ["verify", str(bad), "--checkpoint", str(made[0]), "--segments", "3", "--json"]
    result = CliRunner().invoke(main, args)
    value = json.loads(result.stdout)
    assert result.exit_code == 1 and value["passed"] is False and "segment" in value["failure"]
    assert len(value["segments"]) == 3 and value["segments"][0]["max_abs"] > 1e-4
    assert value["noise"]["log_probs"] < 1e-4


@pytest.mark.parametrize("head", ["target", "top_k", "features", "logits@last"])
def test_every_head_is_judged(exported: ExportFixture, head: str) -> None:
    heads = ("log_probs", "logits", "target", "top_k", "features")
    heads = (*heads, *(f"{h}@last" for h in heads))
    made = exported("adaptive", "kv", ("1-8",), heads)
    report = verify(made.path, made.checkpoint, random=0, segments=4, head=head)
    assert report.passed, report.failure
    other = random_checkpoint(made.config, made.checkpoint.dialect, seed=99, std=0.3)
    failed = verify(made.path, other, random=0, segments=4, head=head)
    assert not failed.passed and f"{head} differs" in failed.failure


def test_a_short_text_is_run_as_far_as_it_goes_and_said(made: tuple[Path, Path]) -> None:
    report = verify(made[1], text=b"import this\n", segments=64)
    assert report.passed
    assert [s.length for s in report.segments] == [4, 4]
    assert "ended after 2 of 64 segments" in report.notes[-1]
    assert "too short to tell" in report.trend.describe()
    tiny = verify(made[1], text=b"ab")
    assert [s.length for s in tiny.segments] == [1]


def test_a_long_run_says_that_nothing_drifts(made: tuple[Path, Path]) -> None:
    report = verify(made[1], random=1, segments=24)  # 3 layers x 8 tokens = 6 segments, then 18
    assert report.trend.segments == 18 and report.trend.drifts is False


def test_bad_input_is_one_line(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, bundle = made
    other = tmp_path / "other"
    native.save(other, random_checkpoint(tiny_config(vocab_size=256, mem_len=8, n_layer=2)))
    gone = shutil.copytree(bundle, tmp_path / "gone" / "bundle")
    bad = [
        (lambda: verify(bundle, text=b""), "two or more"),
        (lambda: verify(bundle, text=b"a"), "two or more"),
        (lambda: verify(bundle, text=b"abc", random=1), "exclude each other"),
        (lambda: verify(bundle, ids=np.zeros(9)), "integers"),
        (lambda: verify(bundle, ids=np.full(9, 256)), "0 to 255"),
        (lambda: verify(bundle, ids=np.array([1, 2, 3, 4, 999])), "0 to 255"),  # a target only
        (lambda: verify(bundle, batch_size=-1), "1 to 4096"),
        (lambda: verify(bundle, random=-1), "0 or more"),
        (lambda: verify(bundle, ids=np.zeros((3, 9), int)), "3"),
        (lambda: verify(bundle, segments=0), "1 or more"),
        (lambda: verify(bundle, segment_len=5), "1 to 4"),
        (lambda: verify(bundle, head="target"), "--head target"),
        (lambda: verify(bundle, checkpoint=other), "n_layer 2"),
        (lambda: verify(gone), "--checkpoint"),
    ]
    for call, expected in bad:
        with pytest.raises(InputError) as e:
            call()
        assert expected in one_line(e.value)


@pytest.mark.parametrize("field, value", [("initial_memory", "zeros"), ("window_extra", 1), ("layer_norm_eps", 1e-12)])
def test_a_judge_that_is_evaluated_otherwise_is_refused(made: tuple[Path, Path], field: str, value: object) -> None:
    loaded = native.load(made[0])
    other = dataclasses.replace(loaded, dialect=dataclasses.replace(loaded.dialect, **{field: value}))
    with pytest.raises(InputError, match=f"has {field} {value!r}, the bundle was evaluated with") as e:
        judge_of(Bundle.open(made[1]), other)
    one_line(e.value)
    # Rows of clusters are in the order of the file: a conversion of the checkpoint may have them in another.
    reordered = dataclasses.replace(loaded, dialect=dataclasses.replace(loaded.dialect, cluster_order="reversed"))
    assert judge_of(Bundle.open(made[1]), reordered)[0] is reordered


def test_a_checkpoint_that_changed_since_the_export_is_said(made: tuple[Path, Path], tmp_path: Path) -> None:
    model = shutil.copytree(made[0], tmp_path / "model")
    bundle = shutil.copytree(made[1], tmp_path / "bundle")
    loaded = native.load(model)
    weights = {k: w.copy() for k, w in loaded.weights.items()}
    weights["u" if "u" in weights else "layers.0.attention.u"] += 0.5
    native.save(model, Checkpoint(loaded.config, loaded.dialect, weights, vocab=loaded.vocab))
    report = verify(bundle, random=0, segments=3)
    assert not report.passed and "has changed since the export" in report.notes[0]


def test_a_kept_checkpoint_is_the_judge(tmp_path: Path) -> None:
    model = random_checkpoint(tiny_config(), std=0.3)
    bundle = export(model, tmp_path / "bundle", segment_lens=(1,), keep_checkpoint=True)
    assert Bundle.open(bundle.path).judge_path == bundle.path / "checkpoint"
    assert verify(bundle, random=0, segments=20).passed
