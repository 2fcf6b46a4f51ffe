"""What the names in a pickle stand for. A name that is not here is refused; nothing is ever imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txl_export.checkpoints.pickles._plain import Plain, Storage, Tensor
from txl_export.errors import CheckpointError

Maker = Callable[[tuple[Any, ...]], Any]

# Modules whose classes are kept as name and attributes. Upstream puts `utils` on the path, so its modules
# go by both names.
_MODULES = frozenset(
    {
        "mem_transformer",
        "torch.nn.parallel.data_parallel",
        "torch.nn.parallel.distributed",
        *(prefix + name for name in ("data_parallel", "data_utils", "log_uniform_sampler", "proj_adaptive_softmax",
                                     "vocabulary") for prefix in ("", "utils.")),
    }
)  # fmt: skip
# Tokenizers pickle all of their attributes: `sacremoses` splits text for some, NVIDIA's `OpenAIVocab` holds GPT-2's.
_MODULE_PREFIXES = (
    "torch.nn.modules.", "sacremoses.", "pytorch_transformers.tokenization_", "transformers.tokenization_",
    "transformers.models.gpt2.tokenization_gpt2.",
)  # fmt: skip
_DTYPES = ("float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
_NUMPY = (f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct"))
_BUILTINS = (f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("dict", "float", "int", "list"))
# Single classes that are kept the same way: options, numbers of numpy, types and devices.
_CLASSES = frozenset(
    {
        "argparse.Namespace",
        "re._compile",
        "_regex.compile",
        "regex._regex.compile",
        "tokenizers.AddedToken",
        "numpy.dtype",
        "numpy.ndarray",
        *_NUMPY,
        *_BUILTINS,
        "torch.device",
        "torch.nn.backends.thnn._get_thnn_function_backend",  # an attribute of every module until torch 1.2
        *(f"torch.{name}" for name in _DTYPES),
    }
)
_STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "bfloat16",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "|i1", "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}  # fmt: skip


def _view(args: tuple[Any, ...]) -> Tensor:
    """`_rebuild_tensor(storage, offset, size, stride, ...)`."""
    storage, offset, shape, strides = args[:4]
    if not (isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise CheckpointError("a tensor is made of something else than a storage, an offset, a size and strides")
    return Tensor(storage, offset, shape, strides)


def _parameter(args: tuple[Any, ...]) -> Tensor:
    if not isinstance(args[0], Tensor):
        raise CheckpointError("a parameter holds no tensor")
    return args[0]


def _mapping(args: tuple[Any, ...]) -> dict[Any, Any]:
    """Ordered and default dicts and counters: the dict that they are made of, or an empty one to be filled."""
    if len(args) == 1 and isinstance(args[0], list):
        return _from_pairs(args[0])
    filled = args[-1] if args and isinstance(args[-1], dict) else {}
    if any(not isinstance(a, Plain | dict) for a in args):
        raise CheckpointError("a mapping is made of something else than a dict")
    return filled


def _from_pairs(pairs: list[Any]) -> dict[Any, Any]:
    """How Python 2 writes an ordered dict. The pairs leave their list, so that nothing can be multiplied."""
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str | int) for pair in pairs):
        raise CheckpointError("a mapping is made of something else than pairs")
    found = {key: value for key, value in pairs}  # noqa: C416 - the pairs may be lists
    pairs.clear()
    return found


def _items(args: tuple[Any, ...]) -> Any:
    """Sets and sizes: the list or tuple that they are made of. Nothing is copied, so nothing can be multiplied."""
    if len(args) > 1 or not all(isinstance(a, list | tuple) for a in args):
        raise CheckpointError("a set is made of something else than a list")
    return args[0] if args else []


def _encoded(args: tuple[Any, ...]) -> bytes | Plain:
    """`_codecs.encode(text, "latin1")`: how protocol 2 writes bytes."""
    text, coding = args
    if isinstance(text, Plain):  # passed over
        return text
    if not isinstance(text, str) or coding != "latin1":
        raise CheckpointError("bytes are written as something else than latin1 text")
    return text.encode("latin1")


# Calls that the machine does itself, with this file's own code.
_MAKERS: dict[str, Maker] = {
    "torch._utils._rebuild_tensor": _view,
    "torch._utils._rebuild_tensor_v2": _view,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.Size": _items,
    "collections.OrderedDict": _mapping,
    "collections.defaultdict": _mapping,
    "collections.Counter": _mapping,
    "builtins.set": _items,
    "builtins.frozenset": _items,
    "__builtin__.set": _items,
    "__builtin__.frozenset": _items,
    "_codecs.encode": _encoded,
}


class Name(Plain):
    """A class or function as such, before anything is made of it."""

    def make(self, args: tuple[Any, ...]) -> Any:
        """What calling it would give, as plain data; raises CheckpointError for arguments that do not fit."""
        maker = _MAKERS.get(self.name)
        return maker(args) if maker else Plain(self.name, args)


def known_name(module: str, name: str) -> Name | None:
    """The stand-in of a class or function; None for one that has none."""
    full = f"{module}.{name}"
    is_class = (module in _MODULES or module.startswith(_MODULE_PREFIXES)) and name.isidentifier()
    is_known = is_class or full in _CLASSES or full in _MAKERS or storage_dtype(full) is not None
    return Name(full) if is_known else None


def storage_dtype(name: str) -> str | None:
    """The dtype of a storage class such as "torch.FloatStorage"; None for other names."""
    module, _, kind = name.rpartition(".")
    return _STORAGES.get(kind) if module in ("torch", "torch.cuda") else None
