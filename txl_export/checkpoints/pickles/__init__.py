"""Files of `torch.save`, read without torch and without running anything that is named in them."""

from txl_export.checkpoints.pickles._file import TorchFile, is_torch_file, open_torch, read_once
from txl_export.checkpoints.pickles._machine import read_pickle
from txl_export.checkpoints.pickles._plain import Plain, Storage, Tensor
from txl_export.checkpoints.pickles._text import shown

__all__ = [
    "Plain",
    "Storage",
    "Tensor",
    "TorchFile",
    "is_torch_file",
    "open_torch",
    "read_once",
    "read_pickle",
    "shown",
]
