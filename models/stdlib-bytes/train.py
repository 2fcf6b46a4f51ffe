"""Train the shipped byte-level Transformer-XL on the standard library's own sources.

One command, `python models/stdlib-bytes/train.py`, makes the shipped model. Ctrl-C saves; the same command
goes on from there, to the same weights as an uninterrupted run.
"""

from __future__ import annotations

import io
import math
import platform
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
import torch
from corpus import VALIDATION, digest, held_out_text, lanes, training_text
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from txl_export.checkpoints import native
from txl_export.checkpoints.base import Checkpoint
from txl_export.config import ModelConfig
from txl_export.files import write_atomic
from txl_export.reference import Memory, TransformerXL
from txl_export.vocabulary import ByteVocabulary

HERE = Path(__file__).resolve().parent
MODEL = ModelConfig(
    vocab_size=256,
    n_layer=5,
    n_head=6,
    d_model=192,
    d_head=32,
    d_inner=768,
    tie_weight=True,
    untie_r=True,
    mem_len=512,
)
CLIP = 0.5
VALIDATION_SEGMENTS = 16  # per lane: 32 KB of text, about two seconds
BITS = 1 / math.log(2)


@dataclass(frozen=True)
class Stage:
    """A part of the training with one memory length; it begins with a fresh optimiser and an empty memory.

    Attributes:
        steps: how many.
        mem_len: memory length M in tokens.
        lr: learning rate after the warm-up.
        final_lr: where half a cosine ends, with the stage's last step.
        warm_up: steps of linear warm-up.
    """

    steps: int
    mem_len: int
    lr: float
    final_lr: float = 0.0
    warm_up: int = 150

    def learning_rate(self, step: int) -> float:
        """The rate of one of its steps, counted from 0."""
        if step < self.warm_up:
            return self.lr * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.final_lr + (self.lr - self.final_lr) * 0.5 * (1 + math.cos(math.pi * done))


# Short memory first, because its steps are cheap; then the length that the model is for; last, twice that, so
# that distances beyond it are no surprise.
STAGES = (
    Stage(5500, mem_len=256, lr=1e-3),
    Stage(5500, mem_len=512, lr=1e-3, final_lr=1e-4),
    Stage(600, mem_len=1024, lr=1e-4, warm_up=50),
)


@dataclass(frozen=True)
class Recipe:
    """What decides the weights: a saved state goes on only under the recipe that it began with.

    Threads are part of it, because they decide the order of sums; `data` is the digest of the text.
    """

    seed: int
    threads: int
    data: str
    stages: tuple[Stage, ...] = STAGES
    batch: int = 16
    segment: int = 128

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> tuple[Stage, int]:
        """The stage that a step belongs to, and its number within it; the last step's successor is the last's."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        return self.stages[-1], self.stages[-1].steps


class Training:
    """Model, optimiser and place in the text: all that an interruption must not lose."""

    def __init__(self, recipe: Recipe, text: bytes) -> None:
        """Start at step 0 with weights drawn by the recipe's seed."""
        torch.manual_seed(recipe.seed)
        self.recipe, self.step, self.seconds = recipe, 0, 0.0
        self.lanes = lanes(text, recipe.batch)
        self.model = TransformerXL(MODEL)
        self.begin_stage()

    @property
    def mem_len(self) -> int:
        """Memory length of the current stage."""
        return self.recipe.stage(self.step)[0].mem_len

    def begin_stage(self) -> None:
        """A fresh optimiser, and streams that have read nothing."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.01)
        self.memory = self.model.initial_memory(self.recipe.batch)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Segment number `step` of every lane and the bytes that follow.

        The text is a ring: a lane that reaches its end goes on where the next one began, so its memory
        is always what came before.
        """
        L, (count, n) = self.recipe.segment, self.lanes.shape  # noqa: N806 - the paper's symbol
        start = torch.arange(count)[:, None] * n + self.step * L
        piece = self.lanes.view(-1)[(start + torch.arange(L + 1)) % (count * n)].long()
        return piece[:, :-1], piece[:, 1:]

    def advance(self) -> float:
        """Train on one segment; returns its loss in bits per byte."""
        began = time.monotonic()
        stage, number = self.recipe.stage(self.step)
        if number == 0:
            self.begin_stage()
        for group in self.optimizer.param_groups:
            group["lr"] = stage.learning_rate(number)
        nats, self.memory = mean_loss(self.model, *self.batch(), self.memory, stage.mem_len)
        self.optimizer.zero_grad()
        nats.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.step += 1
        self.seconds += time.monotonic() - began
        return nats.item() * BITS

    def save(self, path: Path) -> None:
        """Write the state; an older one is replaced only by a complete one."""
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "memory": list(self.memory.hidden),
            "filled": self.memory.filled,
            "rng": torch.get_rng_state(),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomic(path, buffer.getvalue())

    def restore(self, path: Path) -> None:
        """Go on from a saved state; raises ClickException when it belongs to another recipe."""
        state: dict[str, Any] = torch.load(path, weights_only=True)  # noqa: TID251 - weights only: no code runs
        if state["recipe"] != asdict(self.recipe):
            changed = ", ".join(k for k, v in asdict(self.recipe).items() if state["recipe"].get(k) != v)
            raise click.ClickException(f"{path} has other {changed}: use the old values, or add --restart")
        self.step, self.seconds = state["step"], state["seconds"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory = Memory(tuple(state["memory"]), state["filled"])
        torch.set_rng_state(state["rng"])


def mean_loss(
    model: TransformerXL, ids: Tensor, targets: Tensor, memory: Memory, mem_len: int
) -> tuple[Tensor, Memory]:
    """Mean loss in nats of one segment, and the next memory.

    bfloat16 products nearly halve a step's time; softmax and loss stay float32.
    """
    with torch.autocast("cpu", torch.bfloat16):
        h, memory = model.features(ids, memory, mem_len)
    log_probs = model.softmax.target_log_probs(h.float(), targets, model.embedding)
    return -log_probs.mean(), memory


@torch.no_grad()
def validation_loss(model: TransformerXL, text: Tensor, segment: int, mem_len: int) -> float:
    """Bits per byte on the first segments of each validation lane, for the eye: evaluate.py measures."""
    memory, total = model.initial_memory(len(text)), 0.0
    pieces = text[:, : VALIDATION_SEGMENTS * segment + 1].long()
    count = (pieces.shape[1] - 1) // segment
    for i in range(count):
        piece = pieces[:, i * segment : (i + 1) * segment + 1]
        nats, memory = mean_loss(model, piece[:, :-1], piece[:, 1:], memory, mem_len)
        total += nats.item() * BITS
    return total / count


class Stop:
    """Set by Ctrl-C or a polite kill; the step that is running ends first."""

    def __init__(self) -> None:
        """Listen for both signals."""
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, signal.SIG_DFL)  # a second one does not wait


def progress_bar(console: Console) -> Progress:
    """The bar with what one wants to know of a training."""
    return Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("{task.fields[bits]:.3f} bits/byte  {task.fields[speed]:,.0f} tokens/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
    )


def run(training: Training, state: Path, every: int, console: Console) -> bool:
    """Train to the last step or the next Ctrl-C, saving the state every so often; True when finished."""
    stop, recipe = Stop(), training.recipe
    validation = lanes(held_out_text(VALIDATION), recipe.batch)
    with progress_bar(console) as progress:
        task = progress.add_task("", total=recipe.steps, completed=training.step, bits=math.nan, speed=0.0)
        first, first_seconds, recent = training.step, training.seconds, 0.0
        while training.step < recipe.steps and not stop.requested:
            bits = training.advance()
            recent = bits if not recent else 0.98 * recent + 0.02 * bits
            done = training.step - first
            speed = done * recipe.batch * recipe.segment / (training.seconds - first_seconds)
            progress.update(task, completed=training.step, bits=recent, speed=speed)
            if training.step % 100 == 0 or training.step == recipe.steps:
                console.print(f"step {training.step}: {recent:.4f} bits/byte, {speed:,.0f} tokens/s")
            if training.step % every == 0:
                training.save(state)
                held_out = validation_loss(training.model, validation, recipe.segment, training.mem_len)
                console.print(f"step {training.step}: validation {held_out:.4f} bits/byte")
    training.save(state)
    return training.step == recipe.steps


def export(training: Training, out: Path) -> None:
    """Write the weights as a native checkpoint."""
    weights = {name: w.detach().numpy() for name, w in training.model.state_dict().items()}
    native.save(out, Checkpoint(MODEL, training.model.dialect, weights, vocab=ByteVocabulary()))


@click.command(context_settings={"show_default": True})
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=HERE, help="Where to write.")
@click.option("--seed", default=1, help="Draws the weights and the order of the files.")
@click.option("--threads", default=2, help="CPU threads.")
@click.option("--save-every", default=250, help="Steps between saved states.")
@click.option("--restart", is_flag=True, help="Forget a saved state and begin at step 0.")
def main(out: Path, seed: int, threads: int, save_every: int, restart: bool) -> None:
    """Train the model; Ctrl-C saves, and the same command goes on."""
    console = Console()
    torch.set_num_threads(threads)
    text, state = training_text(seed), out / ".train" / "state.pt"
    training = Training(Recipe(seed, threads, digest(text)), text)
    version = platform.python_version()
    console.print(f"Python {version}: {len(text):,} bytes of sources, digest {digest(text)}")
    if state.exists() and not restart:
        training.restore(state)
        console.print(f"going on from step {training.step} ({state})")
    if not run(training, state, save_every, console):
        console.print(f"stopped at step {training.step} of {training.recipe.steps}, saved: the same command goes on")
        sys.exit(130)
    export(training, out)
    state.unlink()
    console.print(f"{out} holds the weights, after {training.seconds / 60:.0f} minutes of training")


if __name__ == "__main__":
    main()
