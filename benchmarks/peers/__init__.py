"""Ways to run a Transformer-XL with its memory fed back: one module per peer, one line each in `PEERS`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.base import PeerModule
from txl_export.errors import missing_extra


@dataclass(frozen=True)
class About:
    """What is known of a peer without importing it.

    Attributes:
        title: what it is, for readers of the results.
        layout: what its memory holds.
        needs: packages, each with the extra that brings it.
        built: what its files are made for: "" (it loads the checkpoint itself), "shape" or "memory" (a shape
            and M).
        build_seconds: about how long making them takes, for each segment length where they depend on it.
        load_seconds: about how long a process takes to its first answer.
        flop_rate: about how many FLOPs per second it reaches on two cores.
        base_bytes: of its process with nothing loaded.
        memories: how many copies of the memory it holds during a call.
        scores: how many copies of one layer's attention scores, [B, H, L, M + L].
        outputs: how many copies of the log-probabilities, [B, L, V].
    """

    title: str
    layout: str
    needs: tuple[tuple[str, str], ...]
    built: str
    build_seconds: float
    load_seconds: float
    flop_rate: float
    base_bytes: float
    memories: float
    scores: float
    outputs: float


_TORCH, _ORT = ("torch", "export"), ("onnxruntime", "cpu")

# In the order of the results' columns.
PEERS: dict[str, About] = {
    "huggingface": About(
        "Hugging Face eager", "hidden", (("transformers", "parity"), _TORCH), "shape",
        build_seconds=8, load_seconds=5, flop_rate=1.5e11, base_bytes=4e8, memories=2.5, scores=7, outputs=3,
    ),
    "eager": About(
        "the reference, eager", "hidden", (_TORCH,), "",
        build_seconds=0, load_seconds=3.5, flop_rate=2e11, base_bytes=3e8, memories=2.5, scores=6, outputs=2,
    ),
    "compile": About(
        "the reference, torch.compile", "hidden", (_TORCH,), "",
        build_seconds=0, load_seconds=45, flop_rate=2e11, base_bytes=6e8, memories=2.5, scores=4, outputs=2,
    ),
    "plain-onnx": About(
        "plain ONNX export, ONNX Runtime", "hidden", (_ORT, _TORCH, ("onnxscript", "export")), "shape",
        build_seconds=40, load_seconds=1, flop_rate=3e11, base_bytes=1e8, memories=3, scores=5, outputs=3,
    ),
    "kv": About(
        "txl-export kv, ONNX Runtime", "kv", (_ORT, _TORCH, ("onnxscript", "export")), "memory",
        build_seconds=10, load_seconds=1, flop_rate=3e11, base_bytes=1e8, memories=2.2, scores=5, outputs=2,
    ),
    "ring": About(
        "txl-export ring, ONNX Runtime", "ring", (_ORT, _TORCH, ("onnxscript", "export")), "shape",
        build_seconds=40, load_seconds=1, flop_rate=3e11, base_bytes=1e8, memories=1.1, scores=7, outputs=2,
    ),
}  # fmt: skip
JUDGE = "eager"  # its numbers are what the others' must be


def peer_module(name: str) -> PeerModule:
    """The module of a peer, imported now."""
    module: PeerModule = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return module


def require(names: Iterable[str]) -> None:
    """Raise EnvironmentMismatch for the first package that one of these peers lacks."""
    for name in names:
        for package, extra in PEERS[name].needs:
            if importlib.util.find_spec(package) is None:
                raise missing_extra(package, extra, f"peer {name!r}")
