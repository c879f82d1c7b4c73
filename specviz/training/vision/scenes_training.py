"""How the small vision-language model learns: first to see, from a dense teacher, then to see and speak together.

The dense teacher says of every patch what it shows; with it the picture's tokens mean something before language asks for
them, which saves most of the time that grounding words in pixels takes from nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.training.common import trainer
from specviz.training.common.optimizer import Optimizer
from specviz.training.vision.scene_batches import FRESH, Batch, Writer, batch_of, batches, held_out
from specviz.training.vision.scenes_model import Learner, training_attention

SEEING, SPEAKING = "seeing", "speaking"


@dataclass(frozen=True)
class Settings:
    """What may be changed from run to run.

    ``minutes`` of training time, ``seeing`` of it (a share) with the dense teacher alone. An update reads ``batch`` scenes,
    ``part`` at a time on each of ``workers`` cores, with ``questions`` questions each, and for each of them
    ``reading`` pages about scenes that are told of and not shown. ``teacher`` is the dense teacher's
    weight while language is learned, ``slower`` what the rate of all that sees is then multiplied by: what language asks of
    it at first is mostly noise. On a processor minutes are those its cores have really worked for this.
    """

    minutes: float = 32.0
    seeing: float = 0.25
    batch: int = 6
    seeing_batch: int = 32
    part: int = 6
    questions: int = 6
    reading: int = 4
    teacher: float = 0.25
    slower: float = 0.25
    peak: float = 0.004
    decay: float = 0.02
    every: float = 2.0
    measured: int = 24
    workers: int = 1
    seed: int = 0
    resume: bool = False


@dataclass
class Bench:
    """All that one training works on. ``measure`` gives figures on held-out scenes for a milestone."""

    learner: Learner
    tokenizer: Any
    rough: torch.dtype | None
    measure: Callable[[str], dict[str, float]]
    stage: str = SEEING
    slower: float = 1.0
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.begin(SEEING)

    def begin(self, stage: str) -> None:
        """A stage has an optimiser of its own, over what it moves."""
        self.stage = stage
        shaped = {name: Learner.shaped(name, value.data) for name, value in self.leaves().items()}
        sees = [name for name in shaped if ".text_model." not in name]
        pace = dict.fromkeys(sees, self.slower) if stage == SPEAKING else {}
        self.optimizer = Optimizer(shaped, rough=self.rough, pace=pace)

    def leaves(self) -> dict[str, torch.nn.Parameter]:
        return self.learner.leaves(self.stage == SPEAKING)


def update(bench: Bench, parts: list[Batch], rate: float, settings: Settings) -> float:
    """One update over all ``parts``; the mean loss."""
    leaves, device = bench.leaves(), bench.learner.model.device

    def loss(part: Batch) -> Tensor:
        part = moved(part, device)
        visual = bench.learner.see(part.pixels)
        found = bench.learner.patch_loss(visual, part)
        if bench.stage == SPEAKING:
            found = settings.teacher * found + bench.learner.word_loss(visual, part)
        return found / len(parts)

    with training_attention(bench.learner.model):
        found, value = trainer.gradients(parts, loss, list(leaves.values()), settings.workers)
    gradients = {name: Learner.shaped(name, one) for name, one in zip(leaves, found, strict=True)}
    bench.optimizer.step(gradients, rate, settings.decay, settings.workers)
    return value


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on this device."""
    fields = {name: value.to(device) for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return Batch(patches={name: value.to(device) for name, value in batch.patches.items()}, **fields)


def train(bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report, before: str = "") -> trainer.Progress:
    """Train until the minutes are spent, saving and measuring on the way; the averaged weights end up in the model.

    ``before`` says what was spent on a model that speaks already.
    """
    again = trainer.goes_on(settings.resume, checkpoint, before)
    progress = resume(bench, checkpoint) if again else trainer.Progress(before=before)
    if progress.before and bench.stage == SEEING:
        bench.begin(SPEAKING)
    on_processor = bench.learner.model.device.type == "cpu"
    clock = trainer.Clock(progress, settings.minutes, settings.workers if on_processor else None)
    stream = _stream(bench, settings, progress)
    due = progress.seconds + 60 * settings.every
    recent: list[float] = []
    clock.start()
    while clock.share < 1:
        if bench.stage == SEEING and clock.share >= settings.seeing:
            use_average(bench)
            bench.begin(SPEAKING)
            stream = _stream(bench, settings, progress)
        parts = next(stream)
        rate = trainer.rate(settings.peak, clock.share, bench.optimizer.updates)
        recent.append(update(bench, parts, rate, settings))
        progress.updates += 1
        progress.tokens += sum(len(part.pixels) for part in parts)
        clock.stop()
        if progress.seconds >= due or clock.share >= 1:
            _milestone(bench, checkpoint, progress, sum(recent) / len(recent), report)
            recent, due = [], progress.seconds + 60 * settings.every
            clock.start()
    use_average(bench)
    return progress


def _stream(bench: Bench, settings: Settings, progress: trainer.Progress) -> Any:
    """Scenes never shown before: their seeds go on from how many there were (``progress.tokens`` counts scenes)."""
    size, questions = (settings.seeing_batch, 1) if bench.stage == SEEING else (settings.batch, settings.questions)
    start = (settings.seed << 32) + progress.tokens
    reading = 0 if bench.stage == SEEING else settings.reading
    return batches(Writer(bench.tokenizer), bench.learner.shape.grid, size, settings.part, questions, start, reading)


def _milestone(bench: Bench, checkpoint: Path, progress: trainer.Progress, loss: float, report: trainer.Report) -> None:
    own = {name: value.clone() for name, value in bench.optimizer.parameters.items()}
    use_average(bench)
    found = bench.measure(bench.stage)
    _put(bench, own)
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "scenes": progress.tokens, "loss": loss}
    progress.history.append({**entry, **found})
    trainer.write_checkpoint(checkpoint, state(bench), progress)
    report(progress.history[-1])


def patches_right(learner: Learner, tokenizer: Any, numbers: range) -> dict[str, float]:
    """Of the patches of held-out scenes that show something, how many the dense teacher's heads name rightly."""
    batch = batch_of([held_out(FRESH, number) for number in numbers], Writer(tokenizer), learner.shape.grid, 1)
    batch = moved(batch, learner.model.device)
    with torch.no_grad():
        visual = learner.see(batch.pixels)
        shows = batch.patches["kind"] > 0
        right = {name: (head(visual).argmax(-1) == batch.patches[name])[shows] for name, head in learner.patch_heads.items()}
    return {f"patch_{name}": float(value.float().mean()) for name, value in right.items()}


def use_average(bench: Bench) -> None:
    """Put the averaged weights into the model."""
    _put(bench, bench.optimizer.averaged())


def _put(bench: Bench, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in bench.optimizer.parameters.items():
            value.copy_(weights[name])


def state(bench: Bench) -> dict[str, Tensor]:
    """All that a checkpoint holds: every weight, the optimiser's memory, and which stage it is."""
    weights = {f"weight.{name}": value for name, value in bench.learner.named_parameters()}
    return weights | bench.optimizer.state | {f"stage.{bench.stage}": torch.tensor(bench.optimizer.updates)}


def resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    """Put a checkpoint back; how far it had come."""
    tensors, progress = trainer.read_checkpoint(checkpoint)
    stage = SPEAKING if f"stage.{SPEAKING}" in tensors else SEEING
    bench.begin(stage)
    with torch.no_grad():
        for name, value in state(bench).items():
            if not name.startswith("stage."):
                value.copy_(tensors[name])
    bench.optimizer.updates = int(tensors[f"stage.{stage}"])
    return progress


def stamp() -> str:
    """The time of day, for a log."""
    return time.strftime("%H:%M:%S")
