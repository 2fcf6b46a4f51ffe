"""Bundles: what the manifest says, what opening refuses, and how an export replaces what is there."""

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.bundles import MODELS, checkpoint_of, one_line
from tests.helpers import random_ids, tiny_config
from txl_export import export
from txl_export.bundle import CHECKPOINT, INITIAL, MANIFEST, SCHEMA, WEIGHTS, Bundle, Manifest, digest, file_entry
from txl_export.checkpoints import Checkpoint, load_checkpoint, native
from txl_export.errors import BundleError, EnvironmentMismatch, ExportError, TxlError
from txl_export.graphs import export as export_module
from txl_export.runtime import Engine


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy of a bundle of three graphs, to be damaged."""
    return Path(shutil.copytree(exported("stepping", "kv", (1, 8)).path, tmp_path / "bundle"))


def edit(folder: Path, change) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    manifest["digest"] = digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))


def refused(folder: Path, open_=Bundle.open) -> str:
    with pytest.raises(BundleError) as e:
        open_(folder)
    return one_line(e.value)


def run(folder: Path) -> None:
    """Load and use every graph."""
    engine = Engine.load(folder, threads=1)
    engine.warm_up()
    engine.session(1).feed([[1, 2, 3]])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# The manifest


@pytest.mark.parametrize(
    "key",
    [
        ("stepping", "kv", (1, 8)),
        ("same_length", "hidden"),
        ("wider_window", "kv"),
        ("no_memory", "kv"),
        ("stepping", "ring", (1, 8)),
    ],
)
def test_manifest_round_trip(exported, key):
    bundle = exported(*key)
    written = json.loads((bundle.path / MANIFEST).read_text())
    manifest = Manifest.from_dict(written, bundle.path)
    assert manifest.to_dict() == written
    assert (manifest.config, manifest.dialect) == MODELS[key[0]]
    assert manifest.layout == key[1]
    assert set(written["files"]) == {p.name for p in bundle.path.iterdir()} - {MANIFEST}
    assert all(written["files"][n] == file_entry(bundle.path / n) for n in written["files"])


def test_manifest_says_what_a_server_needs(exported):
    written = json.loads((exported("stepping", "kv", (1, 8)).path / MANIFEST).read_text())
    assert written["mem_len"] == 12 and written["segment_len"] == 8 and written["start_position"] == 0
    assert written["max_batch"] == 4096 and written["precision"] == "fp32" and written["schema"] == SCHEMA
    assert [g["segment"] for g in written["graphs"]] == ["1", "8", "1-8"]
    key = next(s for s in written["states"] if s["input"] == "key_01")
    assert key == {"input": "key_01", "output": "new_key_01", "bytes_per_stream": 2 * 12 * 6 * 4}
    shapes = {t["name"]: t["shape"] for t in written["graphs"][2]["inputs"]}
    assert shapes["input_ids"] == ["batch", "segment"] and shapes["value_00"] == ["batch", 2, 12, 6]
    zeros = json.loads((exported("sliding", "kv", (1, 8)).path / MANIFEST).read_text())
    assert zeros["start_position"] == 12
    assert {"torch", "onnx", "onnxscript", "txl-export"} <= set(written["versions"])


def test_opening_a_good_bundle(exported):
    bundle = exported("stepping", "kv", (1, 8))
    for opened in (Bundle.open(bundle.path), Bundle.open(str(bundle.path), check_files=False)):
        assert opened.vocab is None and opened.judge_path is None
        ids = random_ids(bundle.config, 1, 5)
        np.testing.assert_array_equal(
            Engine.load(opened, threads=1).session(1).feed(ids), bundle.engine.session(1).feed(ids)
        )


# What opening refuses


def set_(*path_and_value):
    *path, last, value = path_and_value

    def change(manifest):
        for key in path:
            manifest = manifest[key]
        manifest[last] = value

    return change


EDITS = {
    "newer schema": (set_("schema", SCHEMA + 1), "update txl-export"),
    "no schema": (lambda m: m.pop("schema"), "schema"),
    "another format": (set_("format", "other"), "not the manifest"),
    "M": (set_("mem_len", 13), "edited"),
    "M as text": (set_("mem_len", "12"), "export again"),
    "M negative": (set_("mem_len", -1), "export again"),
    "layers": (set_("model", "n_layer", 3), "edited"),
    "layout": (set_("layout", "hidden"), "edited"),
    "unknown layout": (set_("layout", "paged"), "paged"),
    "unknown head": (set_("graphs", 0, "head", "probs"), "probs"),
    "unknown dialect": (set_("dialect", "initial_memory", "ones"), "initial_memory"),
    "unknown field": (set_("model", "layers", 3), "layers"),
    "segment": (set_("graphs", 0, "segment", "2"), "edited"),
    "wrong segment": (set_("graphs", 0, "segment", "8-1"), "8-1"),
    "shape": (set_("graphs", 0, "inputs", 0, "shape", ["batch", 2]), "edited"),
    "pair of states": (set_("states", 1, "output", "new_value_00"), "edited"),
    "start": (set_("start_position", 12), "edited"),
    "no graphs": (set_("graphs", []), "no graphs"),
    "graphs no list": (set_("graphs", 3), "export again"),
    "model no object": (set_("model", None), "export again"),
    "missing entry": (lambda m: m.pop("top_k"), "top_k"),
    "files no object": (set_("files", []), "export again"),
    "file without hash": (set_("files", WEIGHTS, {}), "export again"),
    "graph not listed": (lambda m: m["files"].pop("log_probs.L8.onnx"), "log_probs.L8.onnx"),
    "weights not listed": (lambda m: m["files"].pop(WEIGHTS), WEIGHTS),
    "path upwards": (lambda m: m["files"].update({"../x": m["files"][WEIGHTS]}), "'../x'"),
    "absolute path": (lambda m: m["files"].update({"/etc/passwd": m["files"][WEIGHTS]}), "/etc/passwd"),
    "graph upwards": (
        lambda m: (set_("graphs", 0, "file", "../x")(m), m["files"].update({"../x": m["files"][WEIGHTS]})),
        "'../x'",
    ),
    "segment_len beyond": (set_("segment_len", 9), "export again"),
    "segment_len 0": (set_("segment_len", 0), "export again"),
    "max_batch as text": (set_("max_batch", "many"), "export again"),
    "precision": (set_("precision", "fp16"), "edited"),
    "unknown precision": (set_("policy", "precision", "fp8"), "fp8"),
    "tensor that the model has not": (
        set_("policy", "choices", {"layers.9.W_1": {"precision": "fp32"}}),
        "layers.9.W_1",
    ),
    "judge with a null": (set_("judge", {"path": "a\0b"}), "judge"),
    "overrides no object": (set_("judge", {"path": "a", "overrides": [1]}), "judge"),
    "M beyond counting": (set_("mem_len", 10**12), "mem_len"),
    "policy no object": (set_("policy", 3), "export again"),
    "precision of a tensor": (set_("policy", "choices", {"logits": {"precision": "fp16"}}), "logits"),
    "largest no number": (set_("policy", "choices", {"logits": {"precision": "fp32", "largest": "x"}}), "export again"),
    "top_k": (set_("top_k", 0), "export again"),
    "judge no object": (set_("judge", 3), "export again"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_manifest(folder, name):
    change, says = EDITS[name]
    edit(folder, change)
    text = refused(folder)
    assert says in text and str(folder) in text


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "[" * 5000, "\udcff"])
def test_manifest_that_is_none(folder, text):
    (folder / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    assert MANIFEST in refused(folder)


@pytest.mark.parametrize("name", [WEIGHTS, INITIAL, "log_probs.L8.onnx"])
def test_missing_file(folder, name):
    (folder / name).unlink()
    assert name in refused(folder) and "export again" in refused(folder)


@pytest.mark.parametrize("name", [WEIGHTS, INITIAL, "log_probs.L8.onnx"])
def test_truncated_file(folder, name):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1])
    text = refused(folder)
    assert name in text and str(len(data)) in text and str(len(data) - 1) in text


@pytest.mark.parametrize("name", [WEIGHTS, INITIAL, "log_probs.L8.onnx"])
def test_flipped_byte(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    assert name in refused(folder) and "SHA-256" in refused(folder, Engine.load)


def test_no_bundle(tmp_path):
    assert MANIFEST in refused(tmp_path) and "txl-export export" in refused(tmp_path)
    assert "no bundle" in refused(tmp_path / "none")


def refresh_hashes(folder: Path) -> None:
    edit(folder, lambda m: m["files"].update({name: file_entry(folder / name) for name in m["files"]}))


@pytest.mark.parametrize("other", ["log_probs.L8.onnx", "log_probs.L1-8.onnx"])
def test_graph_swapped_for_another(folder, other):
    """Hashes refreshed: the file's own interface betrays it."""
    shutil.copy(folder / other, folder / "log_probs.L1.onnx")
    refresh_hashes(folder)
    text = refused(folder, run)
    assert "log_probs.L1.onnx" in text and "export again" in text


def test_graph_of_another_layout(folder, exported):
    shutil.copy(exported("stepping", "hidden", (1, 8)).path / "log_probs.L8.onnx", folder / "log_probs.L8.onnx")
    refresh_hashes(folder)
    assert "mem_00" in refused(folder, run)


def test_graph_that_is_no_graph(folder):
    (folder / "log_probs.L1.onnx").write_bytes(b"not a graph")
    refresh_hashes(folder)
    assert "cannot be loaded" in refused(folder, run)


def test_weights_too_short_for_the_graphs(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    refresh_hashes(folder)
    assert "cannot be loaded" in refused(folder, run)


def test_initial_memory_misshaped(folder):
    from safetensors.numpy import save_file

    save_file({"key_00": np.zeros((2, 1, 6), np.float32)}, folder / INITIAL)
    refresh_hashes(folder)
    assert "value_00" in refused(folder, run)
    (folder / INITIAL).write_bytes(b"x")
    refresh_hashes(folder)
    refused(folder, run)


def test_a_refused_graph_leaves_the_session_alone(folder):
    shutil.copy(folder / "log_probs.L8.onnx", folder / "log_probs.L1.onnx")
    refresh_hashes(folder)
    session = Engine.load(folder, threads=1).session(1)
    session.feed([[1, 2, 3]])
    with pytest.raises(BundleError):
        session.feed([[1]])
    assert session.positions.tolist() == [3]


# Writing


@pytest.fixture
def small(monkeypatch) -> Checkpoint:
    """A checkpoint that takes a moment: nothing is traced, only files are written."""
    import onnx_ir as ir

    def build(self, graph):
        return ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="none"), ir_version=10)

    monkeypatch.setattr(export_module.Assembler, "build", build)
    return checkpoint_of("stepping")


def test_replaces_a_bundle_and_nothing_else(small, tmp_path):
    first = export(small, tmp_path / "b", segment_lens=(1, 8), layout="kv")
    assert len(first.manifest.graphs) == 3
    (tmp_path / "neighbour").write_text("kept")
    second = export(checkpoint_of("sliding"), tmp_path / "b", segment_lens=(1,))
    assert second.manifest.config.same_length
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted(
        [MANIFEST, WEIGHTS, INITIAL, "log_probs.L1.onnx"]
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "neighbour"]


def test_into_a_new_or_empty_folder(small, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "deep/er/new"):
        assert export(small, tmp_path / name, segment_lens=(1,)).path == tmp_path / name
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": "mine"},
        {MANIFEST: '{"name": "a web page", "icons": []}', "index.html": "mine"},
        {MANIFEST: "[]"},
        {MANIFEST: "{"},
    ],
)
def test_refuses_a_folder_of_other_files(small, tmp_path, files):
    """manifest.json is a common name."""
    (tmp_path / "b").mkdir()
    for name, text in files.items():
        (tmp_path / "b" / name).write_text(text)
    with pytest.raises(ExportError) as e:
        export(small, tmp_path / "b", segment_lens=(1,))
    assert "choose" in one_line(e.value)
    assert contents(tmp_path / "b") == {n: t.encode() for n, t in files.items()}
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_refuses_to_drop_files_put_beside_a_bundle(small, tmp_path):
    export(small, tmp_path / "b", segment_lens=(1,))
    (tmp_path / "b" / "notes.txt").write_text("mine")
    before = contents(tmp_path / "b")
    with pytest.raises(ExportError) as e:
        export(small, tmp_path / "b", segment_lens=(1,))
    assert "notes.txt" in one_line(e.value)
    assert contents(tmp_path / "b") == before


def test_refuses_a_file(small, tmp_path):
    (tmp_path / "b").write_text("mine")
    with pytest.raises(ExportError) as e:
        export(small, tmp_path / "b", segment_lens=(1,))
    one_line(e.value)
    assert (tmp_path / "b").read_text() == "mine"


@pytest.mark.parametrize("where", ["build", "move_out", "_write_initial", "_write_manifest", "save", "rename"])
@pytest.mark.parametrize("error", [ExportError("tracing failed"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_failure_leaves_the_old_bundle(small, tmp_path, monkeypatch, where, error):
    export(small, tmp_path / "b", segment_lens=(1,))
    before = contents(tmp_path / "b")

    def fail(*_, **__):
        raise error

    owner, name = {
        "build": (export_module.Assembler, "build"),
        "move_out": (export_module.WeightStore, "move_out"),
        "_write_initial": (export_module, "_write_initial"),
        "_write_manifest": (export_module, "_write_manifest"),
        "save": (export_module.ir, "save"),
        "rename": (Path, "rename"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        expected = EnvironmentMismatch if isinstance(error, OSError) else type(error)
        with pytest.raises(expected) as e:
            export(small, tmp_path / "b", segment_lens=(1, 8))
    if isinstance(error, OSError):
        assert "no space" in one_line(e.value) and e.value.exit_code == 3
    assert contents(tmp_path / "b") == before
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_failure_leaves_nothing_new(small, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "_write_manifest", lambda *_: (_ for _ in ()).throw(ExportError("no")))
    with pytest.raises(ExportError):
        export(small, tmp_path / "b", segment_lens=(1,))
    assert not list(tmp_path.iterdir())


def test_disk_too_small(small, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(EnvironmentMismatch) as e:
        export(small, tmp_path / "deep" / "b", segment_lens=(1,))
    assert "MB" in one_line(e.value) and e.value.exit_code == 3
    assert not list(tmp_path.iterdir())


def test_disk_full_while_first_rows_are_written(small, tmp_path, monkeypatch):
    """Writers other than Python's own say it in another way."""
    import safetensors.numpy
    from safetensors import SafetensorError

    def fail(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    try:
        export(small, tmp_path / "b", segment_lens=(1,))
    except TxlError as e:
        assert e.exit_code == 3
        assert not list(tmp_path.iterdir())


# The judge


def test_judge_is_found_from_the_bundle(small, tmp_path):
    native.save(tmp_path / "models" / "m", small)
    checkpoint = load_checkpoint(tmp_path / "models" / "m", overrides={"clamp_len": 4})
    bundle = export(checkpoint, tmp_path / "out" / "b", segment_lens=(1,))
    assert bundle.judge_path == tmp_path / "models" / "m"
    judge = bundle.manifest.judge
    assert judge["origin"] == "native" and judge["overrides"] == {"clamp_len": 4} and len(judge["sha256"]) == 64
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-moved")  # both move together
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    assert Bundle.open(moved / "out" / "b").judge_path == moved / "models" / "m"
    shutil.rmtree(moved)
    shutil.rmtree(tmp_path / "models")
    assert Bundle.open(tmp_path / "out" / "b").judge_path is None


def test_kept_checkpoint(small, tmp_path):
    bundle = export(small, tmp_path / "b", segment_lens=(1,), keep_checkpoint=True)
    assert bundle.judge_path == tmp_path / "b" / CHECKPOINT
    kept = load_checkpoint(bundle.judge_path)
    assert kept.config == small.config and kept.dialect == small.dialect
    assert all(np.array_equal(kept.weights[n], w) for n, w in small.weights.items())
    export(small, tmp_path / "b", segment_lens=(1,))  # a bundle with a checkpoint is still a bundle
    assert not (tmp_path / "b" / CHECKPOINT).exists()


def test_progress(small, tmp_path):
    told = []
    export(small, tmp_path / "b", segment_lens=(1, 8), layout="kv", progress=lambda *a: told.append(a))
    assert [t[1:] for t in told] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert "1-8" in told[2][0]


def test_defaults(small, tmp_path):
    config = tiny_config(mem_len=12)
    assert small.config == config
    manifest = export(small, tmp_path / "b").manifest
    assert [str(g.segment) for g in manifest.graphs] == ["1", "8", "64"]
    assert (manifest.layout, manifest.heads, manifest.mem_len) == ("ring", ("log_probs",), 12)
    assert (manifest.ring, manifest.guard, manifest.rewind) == (12 + 64, 63, 0)
    assert (manifest.segment_len, manifest.longest, manifest.top_k) == (64, 64, 29)
    shorter = export(small, tmp_path / "b", mem_len=5, segment_lens=(1, 8), segment_len=3).manifest
    assert (shorter.mem_len, shorter.segment_len, shorter.longest) == (5, 3, 8)


@pytest.mark.parametrize(
    "change",
    [
        set_("model", "d_inner", 25),
        set_("model", "clamp_len", 3),
        set_("dialect", "cluster_order", "reversed"),
        set_("segment_len", 4),
        set_("judge", {"path": "/elsewhere"}),
        lambda m: m["graphs"].pop(0),
    ],
)
def test_an_edit_that_contradicts_nothing_is_noticed(folder, change):
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert "edited" in refused(folder)


def test_a_model_of_absurd_depth_is_refused_at_once(folder):
    edit(folder, set_("model", "n_layer", 10**30))
    assert "n_layer" in refused(folder)
