"""The reference model in PyTorch on a GPU, in half precision with full memories: three ways to call it.

On a machine without a GPU the same code runs on the CPU, with nothing captured and nothing compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.plan import COMPILED, EAGER, GRAPHED, Case
from benchmarks.gpu.timing import Turn, between_events, calls_in, wall
from benchmarks.peers.hidden import HiddenMemory
from txl_export.errors import ToleranceError

TOLERANCE = 0.1  # of log-probabilities in half precision, between ways to call the same model
_WARM_CALLS = 3  # before a capture, as PyTorch asks

Step = Callable[[Tensor], Tensor]


class Reference:
    """The model and the memory tensors of B streams, at addresses that stay."""

    def __init__(self, module: HiddenMemory, mem_len: int, batch_size: int) -> None:
        """Fill the memory with numbers of unit variance, as LayerNorm leaves them."""
        like = module.model.embedding.tables[0]
        shape = (batch_size, mem_len, module.model.config.d_model)
        layers = range(module.model.config.n_layer)
        self.module, self.device = module, like.device
        self.mems = [torch.randn(shape, dtype=like.dtype, device=like.device) for _ in layers]

    def eager(self, ids: Tensor) -> Tensor:
        """A call as PyTorch users write it: new tensors at every call."""
        log_probs, *self.mems = self.module(ids, self.mems)
        return log_probs.float()

    def in_place(self, run: Callable[..., Any], ids: Tensor) -> Tensor:
        """A call that leaves the new memory where the old one was."""
        log_probs, *new = run(ids, self.mems)
        torch._foreach_copy_(self.mems, new)
        return log_probs.float()


def eager(reference: Reference, ids: Tensor) -> Step:
    """No static memory."""
    del ids
    return reference.eager


def graphed(reference: Reference, ids: Tensor) -> Step:
    """One CUDA graph of the whole call, its memory static."""
    if reference.device.type != "cuda":
        return lambda now: reference.in_place(reference.module, now)
    static = ids.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_CALLS):
            reference.in_place(reference.module, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = reference.in_place(reference.module, static)

    def step(now: Tensor) -> Tensor:
        static.copy_(now)
        graph.replay()
        return answer

    return step


def compiled(reference: Reference, ids: Tensor) -> Step:
    """`torch.compile(mode="reduce-overhead")`, which captures by itself; one compilation for each shape."""
    del ids
    on_gpu = reference.device.type == "cuda"
    how: dict[str, Any] = {"mode": "reduce-overhead"} if on_gpu else {"backend": "eager"}
    torch._dynamo.reset()  # else the ninth shape of a model is refused
    run = torch.compile(reference.module, fullgraph=True, dynamic=False, **how)
    for memory in reference.mems:
        torch._dynamo.mark_static_address(memory)  # else it is copied at every call

    def step(now: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return reference.in_place(run, now)

    return step


WAYS: dict[str, Callable[[Reference, Tensor], Step]] = {EAGER: eager, GRAPHED: graphed, COMPILED: compiled}


def measure(way: str, case: Case, checkpoint: Path, turn: Turn) -> Iterator[dict[str, Any]]:
    """Time one way at every point of a case; raises ToleranceError where it gives other numbers than eager."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = HiddenMemory(checkpoint).half().to(device)
    rng = np.random.default_rng(0)
    for length, batch in case.points:
        host_ids = torch.from_numpy(rng.integers(0, module.model.config.vocab_size, (batch, length)))
        with torch.no_grad():
            reference = Reference(module, case.mem_len, batch)
            ids, before = host_ids.to(device), [m.clone() for m in reference.mems]
            step = WAYS[way](reference, ids)
            off = _difference(reference, step, ids, before)
            found = _timed(step, host_ids, ids, turn)
        yield {"way": way, "segment_len": length, "batch_size": batch, "off": off, **found}
        del reference, step, before


def _difference(reference: Reference, step: Step, ids: Tensor, before: list[Tensor]) -> float:
    """From eager's answer to the same tokens after the same memory, max abs."""
    for memory, old in zip(reference.mems, before, strict=True):
        memory.copy_(old)
    found = step(ids).clone()
    off = float((found - reference.module(ids, before)[0].float()).abs().max())
    if not off <= TOLERANCE:
        raise ToleranceError(f"log-probabilities differ from eager's by {off:.1e}, expected at most {TOLERANCE:g}")
    return off


def _timed(step: Step, host_ids: Tensor, ids: Tensor, turn: Turn) -> dict[str, Any]:
    """Wall time from host to host through pinned memory, and on a GPU the time between events."""
    on_gpu = ids.device.type == "cuda"
    answer = step(ids)
    host_ids = host_ids.pin_memory() if on_gpu else host_ids
    out = torch.empty(answer.shape, dtype=answer.dtype, pin_memory=on_gpu)
    wait = torch.cuda.synchronize if on_gpu else _nothing

    def call() -> None:
        out.copy_(step(host_ids.to(ids.device, non_blocking=True)), non_blocking=True)
        wait()

    walls = wall(call, turn)
    if not on_gpu:
        return {"wall_ms": walls, "device_ms": []}

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    pairs: Any = between_events(lambda: step(ids), mark, wait, turn, calls_in(turn, float(np.median(walls))))
    return {"wall_ms": walls, "device_ms": [a.elapsed_time(b) for a, b in pairs]}


def _nothing() -> None:
    """Wait for nothing."""
