"""The package's own format: round trips, and every bad file gives one line."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from tests.helpers import random_checkpoint, random_weights, tiny_config
from txl_export import files, load_checkpoint
from txl_export.checkpoints import Checkpoint, detect_origin, native
from txl_export.config import Dialect
from txl_export.errors import CheckpointError, ConfigError, EnvironmentMismatch, TxlError
from txl_export.reference import TransformerXL
from txl_export.vocabulary import ByteVocabulary

CONFIG = tiny_config(vocab_size=256, cutoffs=(9, 17), div_val=2, tie_projs=(False, True, True), clamp_len=4)
DIALECT = Dialect("zeros", 1, "reversed", 1e-12)
NAME = "layers.1.attention.W_kR"


def one_line(error: Exception, *words: str) -> None:
    assert len(str(error).splitlines()) == 1
    for word in words:
        assert word in str(error)


def refused(path, *words, error=CheckpointError, **arguments):
    with pytest.raises(error) as e:
        load_checkpoint(path, **arguments)
    one_line(e.value, *words)


@pytest.fixture
def folder(tmp_path):
    return native.save(tmp_path / "saved", random_checkpoint(CONFIG, DIALECT))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_part(folder, part, **changes):
    value = json.loads((folder / "config.json").read_text())[part]
    edit_config(folder, **{part: value | changes})


def edit_weights(folder, change, save=save_file):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save(tensors, folder / "model.safetensors")


def test_round_trip_bit_for_bit(tmp_path):
    weights = random_weights(CONFIG)
    weights["u"].flat[:3] = [np.float32(1e-45), np.float32(-0.0), np.float32(3.4028235e38)]
    saved = Checkpoint(CONFIG, DIALECT, weights, vocab=ByteVocabulary())
    assert native.save(tmp_path / "a" / "b", saved) == tmp_path / "a" / "b"
    loaded = load_checkpoint(str(tmp_path / "a" / "b"))
    assert (loaded.config, loaded.dialect, loaded.origin) == (CONFIG, DIALECT, "native")
    assert loaded.path == tmp_path / "a" / "b" and loaded.overrides == {}
    assert isinstance(loaded.vocab, ByteVocabulary)
    assert loaded.vocab.decode(loaded.vocab.encode("häß".encode())) == "häß".encode()
    assert set(loaded.weights) == set(weights)
    for name, w in weights.items():
        assert loaded.weights[name].dtype == np.float32
        assert loaded.weights[name].tobytes() == w.tobytes()
    files = {p.name: p.read_bytes() for p in (tmp_path / "a" / "b").iterdir()}
    assert sorted(files) == ["config.json", "model.safetensors"]
    native.save(tmp_path / "again", loaded)
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()} == files


def test_the_model_is_made_of_the_checkpoints_memory(folder):
    checkpoint = load_checkpoint(folder)
    model = TransformerXL.from_checkpoint(checkpoint)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    for name, p in model.state_dict().items():
        assert p.data_ptr() == checkpoint.weights[name].ctypes.data


def test_detection_gives_its_reason(folder, tmp_path):
    assert detect_origin(folder) == ("native", 'config.json says format "txl-export"')
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "native", "huggingface", "config.json")
    refused(folder / "model.safetensors", "native")
    edit_config(folder, format="other")
    refused(folder, "native", "huggingface")


def test_no_vocabulary_and_unknown_ones(folder):
    assert load_checkpoint(folder).vocab is None
    for bad in ({"kind": "syllables"}, {}, "bytes", ["bytes"], {"kind": ["bytes"]}):
        edit_config(folder, vocabulary=bad)
        refused(folder, "vocabulary", "bytes")


def test_overrides_are_applied_and_recorded(folder):
    loaded = load_checkpoint(
        folder, overrides={"mem_len": 3, "initial_memory": "empty", "window_extra": 0, "clamp_len": None}
    )
    assert (loaded.config.mem_len, loaded.config.clamp_len) == (3, 4)
    assert (loaded.dialect.initial_memory, loaded.dialect.window_extra) == ("empty", 0)
    assert loaded.overrides == {"mem_len": 3, "initial_memory": "empty", "window_extra": 0}
    refused(folder, "d_model", error=ConfigError, overrides={"d_model": 8})
    refused(folder, "same_length", "'yes'", error=ConfigError, overrides={"same_length": "yes"})


def test_saving_over_a_checkpoint_keeps_other_files(folder):
    (folder / "README.md").write_text("card")
    other = random_checkpoint(tiny_config(), seed=5)
    native.save(folder, other)
    assert load_checkpoint(folder).config == other.config
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_keeps_the_old_checkpoint(folder, monkeypatch, failing):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    fsync, calls = files.os.fsync, iter(range(1, 99))

    def full(fd):
        if next(calls) == failing:
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setattr(files.os, "fsync", full)
    for target in (folder, folder.parent / "new"):
        calls = iter(range(1, 99))
        with pytest.raises(EnvironmentMismatch, match="no space"):
            native.save(target, random_checkpoint(tiny_config()))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EnvironmentMismatch, match="cannot be written"):
        native.save(tmp_path / "file", random_checkpoint(tiny_config()))
    assert (tmp_path / "file").read_text() == "mine"


WEIGHT_DAMAGE = {
    "missing": (lambda t: t.pop(NAME), f"lacks {NAME}"),
    "all missing": (lambda t: t.clear(), "and "),
    "extra": (lambda t: t.update(extra=np.zeros(3, np.float32)), "unexpected extra"),
    "line break": (lambda t: t.update({"a\nb": np.zeros(3, np.float32)}), "unexpected a b"),
    "misshaped": (lambda t: t.update({NAME: t[NAME][:-1].copy()}), f"{NAME} is [11, 16], expected [12, 16]"),
    "transposed": (lambda t: t.update({NAME: t[NAME].T.copy()}), f"{NAME} is [16, 12], expected [12, 16]"),
    "flat": (lambda t: t.update({NAME: t[NAME].ravel()}), f"{NAME} is [192]"),
    "scalar": (lambda t: t.update({NAME: np.array(1, np.float32)}), f"{NAME} is []"),
    "nan": (lambda t: t[NAME].__setitem__((3, 4), np.nan), f"{NAME} holds NaN or Inf"),
    "inf": (lambda t: t[NAME].__setitem__((0, 0), -np.inf), f"{NAME} holds NaN or Inf"),
    "too large": (lambda t: t.update({NAME: np.full((12, 16), 1e300)}), f"{NAME} holds NaN or Inf"),
    "integers": (lambda t: t.update({NAME: np.ones((12, 16), np.int64)}), f"{NAME} has dtype int64"),
}


@pytest.mark.parametrize("damage", WEIGHT_DAMAGE)
def test_damaged_weights_are_named(folder, damage):
    change, words = WEIGHT_DAMAGE[damage]
    edit_weights(folder, change)
    refused(folder, str(folder), words)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_load_as_float32(folder, dtype):
    before = load_checkpoint(folder).weights

    def convert(tensors):
        for name, w in tensors.items():
            tensors[name] = torch.from_numpy(w).to(dtype)

    edit_weights(folder, convert, save_torch_file)
    after = load_checkpoint(folder).weights
    for name, w in before.items():
        assert after[name].dtype == np.float32
        assert np.array_equal(after[name], torch.from_numpy(w).to(dtype).float().numpy())
    TransformerXL.from_checkpoint(load_checkpoint(folder))


def test_bfloat16_beside_other_types_and_special_values(folder):
    special = torch.tensor([0.0, -0.0, 1e-40, -3e38, 1.5, 255.0], dtype=torch.bfloat16)
    row = special.repeat(2, 1)

    def convert(tensors):
        tensors |= {n: torch.from_numpy(w) for n, w in tensors.items()}
        tensors["u"] = row

    edit_weights(folder, convert, save_torch_file)
    assert load_checkpoint(folder).weights["u"].tobytes() == row.float().numpy().tobytes()


def test_eight_bit_floats_are_named(folder):
    def convert(tensors):
        tensors |= {n: torch.from_numpy(w) for n, w in tensors.items()}
        tensors[NAME] = tensors[NAME].to(torch.float8_e4m3fn)

    edit_weights(folder, convert, save_torch_file)
    refused(folder, NAME, "F8_E4M3")


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 5000, -1])
def test_truncated_safetensors(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "model.safetensors", "not a readable safetensors file")


@pytest.mark.parametrize(
    "data", [b"garbage of some length", b"\xff" * 64, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 4) + b"null"]
)
def test_garbage_safetensors(folder, data):
    (folder / "model.safetensors").write_bytes(data)
    refused(folder, str(folder))


def test_files_that_are_not_there(folder, tmp_path):
    refused(tmp_path / "nothing", "does not exist")
    refused(tmp_path / "nothing", "does not exist", origin="native")
    refused(folder, "'jax'", "huggingface", origin="jax")
    (folder / "model.safetensors").unlink()
    refused(folder, "model.safetensors")
    (folder / "config.json").unlink()
    refused(folder, "config.json", origin="native")
    refused(folder, "config.json", origin="huggingface")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "config.json", origin="native")


BAD_CONFIGS = {
    "not json": (lambda f: (f / "config.json").write_text("{model"), ("config.json", "JSON")),
    "a list": (lambda f: (f / "config.json").write_text("[]"), ("native",)),
    "newer": (lambda f: edit_config(f, schema=2), ("schema 2", "update txl-export")),
    "no schema": (lambda f: edit_config(f, schema=None), ("schema None",)),
    "no model": (lambda f: edit_config(f, model=None), ("lacks", "'model'")),
    "model a list": (lambda f: edit_config(f, model=[1]), ("lacks", "'model'")),
    "no dialect": (lambda f: edit_config(f, dialect="zeros"), ("lacks", "'dialect'")),
    "unknown field": (lambda f: edit_part(f, "model", heads=2), ("no field heads",)),
    "line break": (lambda f: edit_part(f, "model", **{"he\nads": 2}), ("no field he ads",)),
    "unknown dialect": (lambda f: edit_part(f, "dialect", mask="inf"), ("no field mask",)),
    "another width": (lambda f: edit_part(f, "model", d_inner=25), ("W_1 is [24, 16], expected [25, 16]",)),
    "more layers": (lambda f: edit_part(f, "model", n_layer=3), ("lacks layers.2.attention.W_q", "and 9 more")),
    "fewer layers": (lambda f: edit_part(f, "model", n_layer=1), ("unexpected layers.1.",)),
    "bad value": (lambda f: edit_part(f, "model", cutoffs=["a"]), ("config.json: cutoffs", "the file is damaged")),
    "null value": (lambda f: edit_part(f, "model", vocab_size=None), ("vocab_size",)),
    "bad dialect": (lambda f: edit_part(f, "dialect", initial_memory="ones"), ("initial_memory", "zeros")),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_bad_configs(folder, case):
    change, words = BAD_CONFIGS[case]
    change(folder)
    refused(folder, *words, error=(CheckpointError, ConfigError))


def test_a_config_that_is_a_list_for_a_given_origin(folder):
    (folder / "config.json").write_text("[]")
    refused(folder, "list", "object", origin="native")
    refused(folder, "list", "object", origin="huggingface")


def damage(data: bytes, edits, cut: int) -> bytes:
    out = bytearray(data)
    for at, value in edits:
        out[at % len(out)] = value
    return bytes(out[: len(out) - cut % len(out)] if cut else out)


EDITS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4)
# Bytes that JSON gives a meaning to, more often than chance would.
JSON_EDITS = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from(b'0123456789-.eE"{}[],:ntfu\\ \n\0') | st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(edits=JSON_EDITS, cut=st.just(0) | st.integers(0, 600))
def test_a_damaged_config_loads_or_gives_one_line(folder, edits, cut):
    path = folder / "config.json"
    original = path.read_bytes()
    path.write_bytes(damage(original, edits, cut))
    try:
        load_checkpoint(folder, origin="native")
        load_checkpoint(folder)
    except TxlError as e:
        one_line(e)
    finally:
        path.write_bytes(original)


@FUZZ
@given(edits=JSON_EDITS | EDITS, cut=st.just(0) | st.integers(0, 20_000))
def test_a_damaged_weights_file_loads_or_gives_one_line(folder, edits, cut):
    path = folder / "model.safetensors"
    original = path.read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    path.write_bytes(damage(original[:header], edits, 0) + original[header : len(original) - cut])
    try:
        load_checkpoint(folder)
    except TxlError as e:
        one_line(e)
    finally:
        path.write_bytes(original)


@FUZZ
@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                          lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
                          max_leaves=4),
       field=st.sampled_from([*CONFIG.to_dict(), *DIALECT.to_dict()]))  # fmt: skip
def test_any_value_in_any_field_loads_or_gives_one_line(folder, value, field):
    original = (folder / "config.json").read_text()
    if field == "n_layer" and isinstance(value, int):
        value = min(value, 1000)
    edit_part(folder, "dialect" if field in DIALECT.to_dict() else "model", **{field: value})
    try:
        load_checkpoint(folder)
    except TxlError as e:
        one_line(e)
    finally:
        (folder / "config.json").write_text(original)
