"""How the small vision-language model learns: first to see, from a dense teacher, then to see and speak together.

The dense teacher says of every patch what it shows; with it the picture's tokens mean something before language asks for
them, which saves most of the time that grounding words in pixels takes from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.training.common import parallel
from specviz.training.common.loop import Schedule, Step, TrainState
from specviz.training.common.optimizer import Optimizer
from specviz.training.vision.scene_batches import FRESH, Batch, Writer, batch_of, batches, held_out
from specviz.training.vision.scenes_model import Learner, training_attention

SEEING, SPEAKING = "seeing", "speaking"


@dataclass(frozen=True)
class Settings(Schedule):
    """``seeing`` of the time (a share) goes to the dense teacher alone. An update reads ``batch`` scenes, ``part`` at a time
    on each of ``workers`` cores, with ``questions`` questions each, and for each of them ``reading`` pages about scenes that
    are told of and not shown. ``teacher`` is the dense teacher's weight while language is learned, ``slower`` what the rate of
    all that sees is then multiplied by: what language asks of it at first is mostly noise.
    """

    minutes: float = 32.0
    decay: float = 0.02
    seeing: float = 0.25
    batch: int = 6
    seeing_batch: int = 32
    part: int = 6
    questions: int = 6
    reading: int = 4
    teacher: float = 0.25
    slower: float = 0.25
    measured: int = 24


class ScenesTraining(TrainState):
    """A model of scenes that first learns to see, then to speak of it. ``measured`` gives a stage's figures on held-out
    scenes; ``rough`` is the type that the optimizer multiplies in."""

    unit = "scenes"
    settings: Settings

    def __init__(
        self, learner: Learner, tokenizer: Any, rough: torch.dtype | None, measured: Callable[[str], dict[str, float]],
        settings: Settings,
    ) -> None:  # fmt: skip
        self.learner, self.tokenizer, self.rough, self.measured = learner, tokenizer, rough, measured
        super().__init__(settings, self._optimizer(SEEING), dict(learner.named_parameters()))

    @property
    def speaks(self) -> bool:
        """Whether language is learned by now."""
        return self.progress.stage == SPEAKING

    def leaves(self) -> dict[str, torch.nn.Parameter]:
        """What the stage moves."""
        return self.learner.leaves(self.speaks)

    def begin(self) -> None:
        """A model that speaks already goes on to do both."""
        if self.progress.provenance and not self.speaks:
            self.enter(SPEAKING)
        self.stream = self._scenes()

    def enter(self, stage: str) -> None:
        """A stage has an optimiser of its own, over what it moves, and batches of its own."""
        super().enter(stage)
        self.optimizer = self._optimizer(stage)
        self.stream = self._scenes()

    def step(self, share: float) -> Step:
        """The next scenes' loss and gradients."""
        if not self.speaks and share >= self.settings.seeing:
            self.use_average()
            self.enter(SPEAKING)
        return self.learn_from(next(self.stream))

    def learn_from(self, parts: list[Batch]) -> Step:
        """Mean loss over all ``parts``, and its gradients."""
        leaves, device = self.leaves(), self.learner.model.device

        def loss(part: Batch) -> Tensor:
            part = moved(part, device)
            visual = self.learner.see(part.pixels)
            total = self.learner.patch_loss(visual, part)
            if self.speaks:
                total = self.settings.teacher * total + self.learner.word_loss(visual, part)
            return total / len(parts)

        with training_attention(self.learner.model):
            whole, value = parallel.gradients(parts, loss, list(leaves.values()), self.settings.workers)
        gradients = {name: Learner.shaped(name, one) for name, one in zip(leaves, whole, strict=True)}
        return Step(value, sum(len(part.pixels) for part in parts), gradients)

    def measure(self) -> dict[str, float]:
        return self.measured(SPEAKING if self.speaks else SEEING)

    def _optimizer(self, stage: str) -> Optimizer:
        leaves = self.learner.leaves(stage == SPEAKING)
        shaped = {name: Learner.shaped(name, value.data) for name, value in leaves.items()}
        sees = [name for name in shaped if ".text_model." not in name]
        return Optimizer(shaped, rough=self.rough, pace=dict.fromkeys(sees, self.settings.slower) if stage == SPEAKING else {})

    def _scenes(self) -> Iterator[list[Batch]]:
        """Scenes never shown before: their seeds go on from how many there were (``progress.tokens`` counts scenes)."""
        settings = self.settings
        size, questions = (settings.batch, settings.questions) if self.speaks else (settings.seeing_batch, 1)
        first, reading = (settings.seed << 32) + self.progress.tokens, settings.reading if self.speaks else 0
        return batches(Writer(self.tokenizer), self.learner.shape.grid, size, settings.part, questions, first, reading)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on this device."""
    fields = {name: value.to(device) for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return Batch(patches={name: value.to(device) for name, value in batch.patches.items()}, **fields)


def patches_right(learner: Learner, tokenizer: Any, numbers: range) -> dict[str, float]:
    """Of the patches of held-out scenes that show something, how many the dense teacher's heads name rightly."""
    batch = batch_of([held_out(FRESH, number) for number in numbers], Writer(tokenizer), learner.shape.grid, 1)
    batch = moved(batch, learner.model.device)
    with torch.no_grad():
        visual = learner.see(batch.pixels)
        shows = batch.patches["kind"] > 0
        right = {name: (head(visual).argmax(-1) == batch.patches[name])[shows] for name, head in learner.patch_heads.items()}
    return {f"patch_{name}": float(value.float().mean()) for name, value in right.items()}
