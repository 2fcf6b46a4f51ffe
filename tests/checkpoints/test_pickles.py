"""Reading files of `torch.save`: tensors as they were, nothing run, nothing larger than the file."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.checkpoints.torch_models import FORMS, make, unzipped, zipped
from txl_export import load_checkpoint
from txl_export.checkpoints import pickles
from txl_export.checkpoints.pickles import _machine as machine
from txl_export.checkpoints.pickles import open_torch, read_pickle
from txl_export.checkpoints.torch_files import module_state
from txl_export.errors import CheckpointError, TxlError

HEAD = b"\x80\x02"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def storage(key="0", numel=4, kind="FloatStorage", more=b"") -> bytes:
    numbers = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
    return numbers + b"J" + struct.pack("<i", numel) + more + b"tQ"


def number(n: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", n)


def tensor(shape=(2, 2), strides=(2, 1), offset=0, **of) -> bytes:
    sizes = b"".join(b"(" + b"".join(map(number, ns)) + b"t" for ns in (shape, strides))
    return b"ctorch._utils\n_rebuild_tensor\n(" + storage(**of) + number(offset) + sizes + b"tR"


def load(data: bytes, tmp_path: Path) -> pickles.TorchFile:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    return open_torch(path)


def refused(data: bytes, tmp_path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as e:
        load(data, tmp_path)
    assert len(str(e.value).splitlines()) == 1 and "x.pt" in str(e.value)
    for word in words:
        assert word in str(e.value)


VALUES = {
    "numbers": [None, True, False, 0, 255, 65535, -7, 2**40, -(2**40), 1.5, "é", b"\x00\xff"],
    "nested": {"a": [{"b": (1, 2, 3, 4)}, (), (1,), (1, 2), (1, 2, 3)], "c": {}, "d": OrderedDict(x=1)},
    "shared": (lambda x: [x, x, {"x": x}])([1]),
    "long": ["y" * 300, *range(300)],
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", VALUES)
def test_plain_data_of_every_protocol(name, protocol):
    data = pickle.dumps(VALUES[name], protocol=protocol)
    file = io.BytesIO(data + b"rest")
    assert read_pickle(file, "x") == VALUES[name]
    assert file.read() == b"rest"
    assert read_pickle(io.BytesIO(pickle.dumps({1, 2}, protocol=protocol)), "x") == [1, 2]


@pytest.mark.parametrize("form", [True, False])
def test_tensors_as_torch_saved_them(tmp_path, form):
    base = torch.arange(24.0).reshape(4, 6)
    values = {
        "whole": base, "view": base[1:3, 2:5], "turned": base.t(), "row": base[2], "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 3), "half": base.half(), "bfloat16": base.bfloat16().t(), "double": base.double(),
        "ints": torch.arange(5), "bytes": torch.arange(5, dtype=torch.uint8), "bools": torch.tensor([True, False]),
        "parameter": torch.nn.Parameter(base + 1),
    }  # fmt: skip
    torch.save(values, tmp_path / "x.pt", _use_new_zipfile_serialization=form)
    file = open_torch(tmp_path / "x.pt")
    for name, value in values.items():
        found = file.read(file.root[name], name)
        expected = value.detach().float() if value.is_floating_point() else value
        assert np.array_equal(found, expected.numpy()), name
        assert found.flags.c_contiguous and found.flags.writeable


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Evaluated:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return eval, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("payload", [Payload, Evaluated])
@pytest.mark.parametrize("form", [True, False])
@pytest.mark.parametrize("where", ["alone", "vocab", "state"])
def test_code_is_refused_by_name_and_never_run(tmp_path, payload, form, where):
    witness, path = tmp_path / "witness", tmp_path / "model.pt"
    bad = payload(witness)
    value = {"alone": bad, "vocab": {"model_config": {}, "model_state": {}, "vocab": bad}, "state": {"r_w_bias": bad}}
    torch.save(value[where], path, _use_new_zipfile_serialization=form)
    with pytest.raises(CheckpointError) as e:
        load_checkpoint(path)
    assert ("system" if payload is Payload else "eval") in str(e.value) and "was not run" in str(e.value)
    assert not witness.exists()
    torch.load(path, weights_only=False)  # noqa: TID251 - this test's own file: the payload is live
    assert witness.exists()


@pytest.mark.parametrize(
    "names",
    ["os system", "builtins exec", "__builtin__ eval", "torch load", "torch.nn.modules.x os.system", "torch.hub load",
     "mem_transformer a.b", "subprocess Popen", "numpy load", "collections namedtuple", "builtins getattr",
     "x " + "y" * 200],
)  # fmt: skip
def test_names_that_are_not_known(tmp_path, names):
    module, name = names.split()
    for op in (b"c" + module.encode() + b"\n" + name.encode() + b"\n", text(module) + text(name) + b"\x93"):
        refused(zipped(HEAD + op + b"."), tmp_path, f"names {module}.{name}"[:60], "was not run")


def test_names_cannot_write_to_the_terminal(tmp_path):
    refused(zipped(HEAD + text("a\x1b[2J\n") + text("b\u202e\nc") + b"\x93."), tmp_path, r"names a\x1b[2J\n.b\u202e\nc")
    refused(zipped(HEAD + b"ca\xff\nb\n."), tmp_path, "damaged")


@pytest.mark.parametrize(
    "op",
    [b"0", b"1", b"2", b"I1\n", b"L1\n", b"Va\n", b"S'a'\n", b"F1\n", b"P1\n", b"(i", b"o", b"l", b"d", b"p0\n",
     b"g0\n", b"\x82\x01", b"\x8b\x01\x00\x00\x00\x01", b"\x92", b"\x96", b"\x97", b"\x98"],
)  # fmt: skip
def test_operations_that_data_needs_not(tmp_path, op):
    refused(zipped(HEAD + b"N" + op + b"."), tmp_path, "operation", "was not run")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", b"\x80\x01.", b"\x80\x09.", b".", b"N", b"h\x07.", b"t.", b"R.", b")R.", b"NNR.", b"N)R.",
        b"NNb.", b"Ns.", b"NNNs.", b"](NNu.", b"}(Nu.", b"}]Ns.", b"})Ns.", b"Na.", b"X\xff\xff\xff\xffa.",
        b"X\x05\x00\x00\x00a.", b"(e.", b"cx", b"cx\ny", b"c" + b"x" * 300, b"NN\x93.",
        b"X\x01\x00\x00\x00\xff.", b"\x85.", b"NQ.", b"(NtQ.",
        b"cargparse\nNamespace\nb.", b"cargparse\nNamespace\n}b.", b"cargparse\nNamespace\n)R}b}b.", b"]}b.",
        b"ccollections\nOrderedDict\n](NNNe\x85R.", b"cbuiltins\nset\nN\x85R.", b"c_codecs\nencode\n)R.",
        b"c_codecs\nencode\n" + text("a") + text("idna") + b"\x86R.", b"ctorch._utils\n_rebuild_parameter\n(Nt" + b"R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R.", b"ctorch._utils\n_rebuild_tensor_v2\n(NNNNtR.",
    ],
)  # fmt: skip
def test_pickles_that_make_no_sense(tmp_path, data):
    refused(zipped(data if data[:1] == b"\x80" else HEAD + data), tmp_path)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (tensor((2, 3), (3, 1)), ["[2, 3]", "4 numbers"]),
        (tensor((2, 2), (3, 1)), ["outside"]),
        (tensor((2, 2), (2, 1), offset=1), ["outside"]),
        (tensor((1 << 40,), (0,)), ["outside"]),
        (tensor((4, 4), (0, 1)), ["outside"]),
        (tensor((2,), (-1,), offset=3), ["0 or more"]),
        (tensor((-2,), (1,)), ["0 or more"]),
        (tensor((2,), (1,), offset=-1), ["0 or more"]),
        (tensor((2, 2), (1,)), ["2 dimensions and 1 strides"]),
        (tensor((1,) * 9, (1,) * 9), ["9 dimensions"]),
        (tensor((0, 1 << 62), (1, 1)), ["beyond any model"]),
        (tensor(numel=5), ["storage 0 has 16 bytes", "expected 20"]),
        (tensor(numel=1 << 30), ["storage 0 has 16 bytes"]),
        (tensor(numel=-4), ["storage"]),
        (tensor(kind="DoubleStorage"), ["expected 32"]),
        (tensor(kind="ComplexFloatStorage"), ["torch.ComplexFloatStorage"]),
        (tensor(key="1"), ["storage 1 is missing"]),
        (tensor(key="../data.pkl"), ["missing"]),
        (tensor(more=b"(NNNt"), ["expected a whole storage"]),
        (b"]" + tensor() + b"a" + storage(kind="HalfStorage", numel=8) + b"a", ["storage 0 in two ways"]),
    ],
)
def test_tensors_that_their_file_does_not_hold(tmp_path, made, words):
    refused(zipped(HEAD + made + b".", {"0": bytes(16)}), tmp_path, *words)


def test_the_same_tensor_in_bounds_is_read(tmp_path):
    file = load(zipped(HEAD + tensor((2, 2), (1, 2)) + b".", {"0": np.arange(4, dtype="<f4").tobytes()}), tmp_path)
    assert np.array_equal(file.read(file.root, "x"), [[0, 2], [1, 3]])
    made = tensor((2, 1), (1, 1 << 62), offset=2)  # torch writes any step for a dimension of one
    file = load(zipped(HEAD + made + b".", {"0": np.arange(4, dtype="<f4").tobytes()}), tmp_path)
    assert np.array_equal(file.read(file.root, "x"), [[2], [3]])


def test_archives_that_claim_too_much(tmp_path):
    good = {"0": bytes(4000)}
    pickle_ = HEAD + tensor(numel=1000) + b"."
    assert load(zipped(pickle_, good), tmp_path).root.shape == (2, 2)
    refused(zipped(pickle_, good, zipfile.ZIP_DEFLATED), tmp_path, "is compressed")
    data = zipped(pickle_, good)
    start, size = data.index(b"PK\x01\x02"), struct.pack("<I", 4000)
    claims = data[:start] + data[start:].replace(size, struct.pack("<I", 400000))
    refused(claims, tmp_path, "more bytes than it has")
    refused(zipped(pickle_, good, constants_pkl=b""), tmp_path, "TorchScript")
    refused(zipped(pickle_, good, byteorder=b"big"), tmp_path, "big-endian")
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped(pickle_, good, **{"data/0": bytes(4000)})
    refused(twice, tmp_path, "two entries of one name")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x", b"y" * 50)
    refused(out.getvalue(), tmp_path, "without a data.pkl")


def test_damaged_bytes_and_cut_files(tmp_path):
    for form in ("module", "old module"):
        path, _ = make(form, tmp_path / "model.pt")
        data = path.read_bytes()
        for keep in (20, 70, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:keep])
            with pytest.raises(CheckpointError, match=r"model\.pt"):
                load_checkpoint(path)
    path, _ = make("module", tmp_path / "model.pt")
    data = bytearray(path.read_bytes())
    data[data.index(unzipped(path)["data/2"]) + 5] ^= 1  # a number of a weight: nothing else would notice
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"checksum of \w+/data/2"):
        load_checkpoint(path)


def test_many_views_of_one_storage_are_not_all_read(tmp_path):
    views = [tensor((1000,), (1,), offset=i, numel=2000, kind="HalfStorage") for i in range(200)]
    file = load(zipped(HEAD + b"](" + b"".join(views) + b"e.", {"0": bytes(4000)}), tmp_path)
    with pytest.raises(CheckpointError, match="tensors of over"):
        for i, one in enumerate(file.root):
            file.read(one, str(i))


def test_nothing_is_copied_or_compared_without_end(tmp_path, monkeypatch):
    # A list made a set many times stays one list; keys that would collide or are tuples of tuples are refused.
    items = HEAD + b"](" + b"K\x01" * 50 + b"eq\x00"
    sets = load(zipped(items + b"0]("[1:] + b"cbuiltins\nset\nh\x00\x85R" * 3 + b"e."), tmp_path).root
    assert all(s is sets[0] for s in sets)
    refused(zipped(HEAD + b"}" + b")" + b"\x85" * 200_000 + b"Ns."), tmp_path, "no sense")
    keys = b"".join(b"\x8a\x0a" + ((2**61 - 1) * i).to_bytes(10, "little") + b"N" for i in range(20_000))
    found = load(zipped(HEAD + b"}(" + keys + b"u."), tmp_path).root
    assert len(found) == 20_000 and all(isinstance(key, str) for key in found)
    monkeypatch.setattr(machine, "MOST_OPERATIONS", 1000)
    refused(zipped(HEAD + b"](" + b"N" * 1000 + b"e."), tmp_path, "over 1,000 pickle operations")
    monkeypatch.setattr(machine, "MOST_BYTES", 100)
    for length in (b"X" + struct.pack("<I", 101), b"\x8d" + struct.pack("<Q", 2**64 - 1)):
        refused(zipped(HEAD + length + b"a" * 100), tmp_path, "is cut short")


@pytest.mark.parametrize("found", [rb"n_layer(?:q.|r.{4})", rb"eps(?:q.|r.{4})", rb"cutoffs(?:q.|r.{4})"])
def test_values_that_are_too_deep_to_print_or_compare(tmp_path, found):
    path, _ = make("module", tmp_path / "model.pt")
    entries = unzipped(path)
    storages = {n.removeprefix("data/"): d for n, d in entries.items() if n.startswith("data/")}
    deep = b")" + b"\x85" * 200_000
    data, n = re.subn(
        b"(" + found + rb")(?:K.|G.{8}|\](?:q.|r.{4})\(.*?e)",
        lambda m: m[1] + deep,
        entries["data.pkl"],
        count=1,
        flags=re.DOTALL,
    )
    assert n == 1
    path.write_bytes(zipped(data, storages))
    assert not ends_well(path)


def test_modules_within_modules_without_end(tmp_path):
    module = b"cmem_transformer\nMemTransformerLM\n)\x81q\x00"
    child = text("_modules") + b"}(" + text("a") + b"h\x00" + text("b") + b"h\x00u"
    file = load(zipped(HEAD + module + b"}(" + child + b"ub."), tmp_path)
    with pytest.raises(CheckpointError, match="without end"):
        module_state(file.root, file.path)


def test_old_files_that_are_not_what_they_say(tmp_path):
    path, _ = make("old state dict", tmp_path / "x.pt")
    data = path.read_bytes()
    refused(data.replace(b"M\xe9\x03.", b"M\xe8\x03.", 1), tmp_path, "unknown version")
    refused(data.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89", 1), tmp_path, "big-endian")
    magic = data[:14]
    refused(magic + b".", tmp_path, "cut short")
    last = data.rindex(b"e.") + 2  # the keys' pickle ends, the first storage's size follows
    refused(data[:last] + struct.pack("<q", 1 << 60) + data[last + 8 :], tmp_path, "not what its pickle says")


def old_file(numel: int, data: bytes) -> bytes:
    """An old container of one storage that its pickle and the number before it both say has `numel` numbers."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})
    pickles_ = [pickle.dumps(value, protocol=2) for value in head]
    body = HEAD + tensor(numel=numel, more=b"N") + b"."
    return b"".join([*pickles_, body, pickle.dumps(["0"], protocol=2), struct.pack("<q", numel), data])


def test_old_files_that_claim_more_than_they_have(tmp_path):
    file = load(old_file(4, np.arange(4, dtype="<f4").tobytes()), tmp_path)
    assert np.array_equal(file.read(file.root, "x"), [[0, 1], [2, 3]])
    refused(old_file(5, bytes(19)), tmp_path, "cut short", "storage 0")
    refused(old_file(1 << 30, bytes(16)), tmp_path, "cut short", "storage 0")


def test_a_file_is_parsed_once(tmp_path, monkeypatch):
    path, _ = make("nvidia", tmp_path / "checkpoint_best.pt")
    calls = []
    real = pickles._containers.read_pickle
    monkeypatch.setattr(pickles._containers, "read_pickle", lambda *a: calls.append(1) or real(*a))
    load_checkpoint(path)
    assert len(calls) == 1
    load_checkpoint(path)
    assert len(calls) == 2


def test_names_of_storages_and_devices(tmp_path):
    made = tensor().replace(b"ctorch\nFloatStorage", b"ctorch.cuda\nFloatStorage").replace(text("cpu"), text("cuda:0"))
    file = load(zipped(HEAD + made + b".", {"0": np.arange(4, dtype="<f4").tobytes()}), tmp_path)
    assert np.array_equal(file.read(file.root, "x"), [[0, 1], [2, 3]])


INSERTED = [
    b"cposix\nsystem\n" + text("touch {}") + b"\x85R",
    b"cbuiltins\nexec\n" + text("open('{}', 'w')") + b"\x85R",
    *(b"R", b"b", b"\x81", b"(", b"t", b"Q", b"0", b"q\x00", b"h\x00", b"}", b"]", b"u", b"e", b"s", b"a", b"\x87"),
    *(b"\x93", b"N", b".", b"\x8a\xff"),
]


def mutated(data: bytes, rng: random.Random, witness: Path) -> bytes:
    """A file changed in a few places: bits, cuts, repeated parts, operations and payloads."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(out))
        kind = rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at : at + rng.randrange(1, 30)] = b""
        elif kind == 3:
            out[at:at] = rng.choice(INSERTED).replace(b"{}", str(witness).encode())
        else:
            out[at:at] = out[at : at + rng.randrange(1, 60)]
        if len(out) < 2:
            break
    return bytes(out)


def ends_well(path: Path) -> bool:
    """Whether it loads; anything but one line of a `TxlError` fails the test."""
    try:
        load_checkpoint(path)
    except TxlError as e:
        assert len(str(e).splitlines()) == 1 and len(str(e)) < 600
        return False
    return True


@pytest.mark.parametrize("form", FORMS)
def test_mutated_files_load_or_are_refused_in_one_line(tmp_path, form):
    path, _ = make(form, tmp_path / "model.pt")
    data, rng, witness, loaded = path.read_bytes(), random.Random(form), tmp_path / "witness", 0
    for _ in range(250):
        path.write_bytes(mutated(data, rng, witness))
        loaded += ends_well(path)
    assert loaded < 200 and not witness.exists()


@pytest.mark.parametrize("form", ["module", "state dict", "nvidia"])
def test_mutated_pickles_with_right_checksums(tmp_path, form):
    path, _ = make(form, tmp_path / "model.pt")
    entries, rng, witness, loaded = unzipped(path), random.Random(form), tmp_path / "witness", 0
    storages = {n.removeprefix("data/"): d for n, d in entries.items() if n.startswith("data/")}
    for _ in range(250):
        path.write_bytes(zipped(mutated(entries["data.pkl"], rng, witness), storages))
        loaded += ends_well(path)
    assert 0 < loaded < 200 and not witness.exists()
