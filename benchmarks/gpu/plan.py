"""What is run on a GPU, most important first: models, precisions, memory lengths and the ways to run them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txl_export.config import Dialect, ModelConfig
from txl_export.named_configs import named_config
from txl_export.precision import PrecisionPolicy

BASE_MODEL, NVIDIA_MODEL, TINY_MODEL = "kimiyoung/enwik8-base", "nvidia/wt103-base", "tiny"
MEM_LENS, SEGMENT_LENS, BATCH_SIZES = (1600, 640, 3800), (1, 64, 128), (1, 8, 32)
_TINY = ModelConfig(
    vocab_size=40, n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=32, mem_len=12, same_length=True, clamp_len=9
)

OURS, OURS_DIRECT = "txl-export, CUDA graphs", "txl-export, no CUDA graphs"
EAGER, GRAPHED, COMPILED = "eager", "eager, CUDA graph", "torch.compile"
PEERS = (EAGER, GRAPHED, COMPILED)


@dataclass(frozen=True)
class Case:
    """A bundle to export, build, verify and time.

    Attributes:
        model: a published configuration with random weights, or TINY_MODEL.
        precision: of products and memory.
        mem_len: M.
        segment_lens: tokens L of a call, each.
        batch_sizes: streams B, each.
        head: what a call returns.
        peers: what else runs the same model, of PEERS.
    """

    model: str
    precision: str
    mem_len: int
    segment_lens: tuple[int, ...] = SEGMENT_LENS
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    head: str = "log_probs"
    peers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people and for folders."""
        return f"{self.model.replace('/', '-')}-{self.precision}-M{self.mem_len}"

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """(L, B), single streams first."""
        return tuple((n, b) for b in self.batch_sizes for n in self.segment_lens)

    @property
    def segments(self) -> int:
        """Segments of the longest length that wrap the memory more than twice, so far as time allows."""
        return min(40, 2 * self.mem_len // max(self.segment_lens) + 4)

    @property
    def policy(self) -> PrecisionPolicy:
        """Precision of every tensor; random weights are too tame to need calibration."""
        return PrecisionPolicy(self.precision)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Case:
        """Take back what `to_dict` gave, maybe through JSON."""
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
        return cls(**told)


def model_of(name: str) -> tuple[ModelConfig, Dialect]:
    """Architecture and dialect of a case's model; raises ConfigError for an unknown name."""
    return (_TINY, Dialect()) if name == TINY_MODEL else named_config(name)


@dataclass(frozen=True)
class Step:
    """A process to run.

    Attributes:
        kind: of `benchmarks.gpu.worker.KINDS`.
        case: what it is about.
        way: of a peer, its name.
        least: seconds that must be left for it to be worth a start.
        most: seconds after which it is ended, so that others come to their turn.
    """

    kind: str
    case: Case
    way: str = ""
    least: float = 0.0
    most: float = 60.0

    @property
    def name(self) -> str:
        """In a few words."""
        return f"{self.way or self.kind} of {self.case.name}"


def full_cases() -> tuple[Case, ...]:
    """The whole matrix: half precision before single, and last the model whose times NVIDIA published."""
    half = [Case(BASE_MODEL, "fp16", M, peers=PEERS) for M in MEM_LENS]
    single = [Case(BASE_MODEL, "fp32", M) for M in MEM_LENS]
    nvidia = Case(NVIDIA_MODEL, "fp16", 640, (64,), BATCH_SIZES, "target")
    return (half[0], nvidia, *half[1:], *single)


def tiny_cases() -> tuple[Case, ...]:
    """The same steps in seconds, on any machine."""
    how: dict[str, Any] = {"segment_lens": (1, 4), "batch_sizes": (1, 2)}
    target = Case(TINY_MODEL, "fp32", 8, **how, head="target")
    return Case(TINY_MODEL, "fp16", 12, **how, peers=PEERS), target


# Seconds that a way of PyTorch is given: compiling takes most of them.
_PEER_SECONDS = {EAGER: 20.0, GRAPHED: 25.0, COMPILED: 50.0}


def steps(cases: Sequence[Case], engines: bool = True, ours: bool = True) -> Iterator[Step]:
    """Steps in their order, exports apart, which run at once before them.

    What is compiled comes last but for the first case, where all ways are compared.

    Args:
        cases: most important first.
        engines: whether the backend runs engines, which are built.
        ours: whether the backend can be run at all; peers alone otherwise.
    """
    late: list[Step] = []
    for case in cases:
        if ours:
            yield from [Step("build", case, least=15, most=100)] * engines
            yield Step("verify", case, least=10, most=30)
            yield Step("ours", case, least=8, most=35)
        for way in case.peers:
            step = Step("peer", case, way, least=15, most=_PEER_SECONDS[way])
            if way == COMPILED and case is not cases[0]:
                late.append(step)
            else:
                yield step
    yield from late
