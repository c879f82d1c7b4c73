"""How the small vision-language model learns: first to see, from a dense teacher, then to see and speak together.

The dense teacher says of every patch what it shows; with it the picture's tokens mean something before language asks for
them, which saves most of the time that grounding words in pixels takes from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.networks.weights import read_weights
from specviz.models.device import choose_device
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.training import driver, parallel
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families.scenes import COMBINATIONS, FRESH, UNSEEN_DRAWINGS, held_out
from specviz.training.families.scenes_answers import ask, figures
from specviz.training.families.scenes_batches import Batch, Writer, batch_of, batches, train_tokenizer
from specviz.training.families.scenes_net import Learner, Shape
from specviz.training.registry import Job

SEEING, SPEAKING = "seeing", "speaking"
MEASURED = 80
QUESTIONS = 6
SHOWN = 10


@dataclass(frozen=True)
class Settings(Schedule):
    """``seeing`` of the time (a share) goes to the dense teacher alone. An update reads ``batch`` scenes, ``scenes`` of them in
    a pass (0: shared out to the workers), with ``questions`` questions each, and for each of them ``reading`` pages about
    scenes that are told of and not shown. ``teacher`` is the dense teacher's weight while language is learned, ``slower`` what
    the rate of all that sees is then multiplied by: what language asks of it at first is mostly noise.
    """

    decay: float = 0.02
    seeing: float = 0.25
    batch: int = 6
    seeing_batch: int = 32
    part: int = 1
    scenes: int = 0
    questions: int = 6
    reading: int = 4
    teacher: float = 0.25
    slower: float = 0.25
    measured: int = 24


class ScenesTraining(TrainState):
    """A model of scenes that first learns to see, then to speak of it. ``measured`` gives a stage's figures on held-out
    scenes."""

    unit = "scenes"
    settings: Settings

    def __init__(self, learner: Learner, tokenizer: Any, measured: Callable[[str], dict[str, float]], settings: Settings) -> None:
        self.learner, self.tokenizer, self.measured = learner, tokenizer, measured
        super().__init__(settings, learner.leaves(False), weights=dict(learner.named_parameters()))

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """A table of rows that stand for themselves is no matrix, patches are one."""
        return Learner.shaped(name, value)

    @property
    def speaks(self) -> bool:
        """Whether language is learned by now."""
        return self.progress.stage == SPEAKING

    def begin(self) -> None:
        """A model that speaks already goes on to do both."""
        if self.progress.provenance and not self.speaks:
            self.enter(SPEAKING)
        self.stream = self._scenes()

    def enter(self, stage: str) -> None:
        """A stage has an optimiser of its own, over what it moves, and batches of its own."""
        super().enter(stage)
        leaves = self.learner.leaves(self.speaks)
        self.move(leaves, pace={name: self.settings.slower for name in leaves if ".text_model." not in name})
        self.stream = self._scenes()

    def step(self, share: float) -> Step:
        """The next scenes' loss and gradients."""
        if not self.speaks and share >= self.settings.seeing:
            self.use_average()
            self.enter(SPEAKING)
        return self.learn_from(next(self.stream))

    def learn_from(self, parts: list[Batch]) -> Step:
        """Mean loss over all ``parts``, and its gradients."""

        def loss(some: Sequence[Batch]) -> Tensor:
            (batch,) = some
            part = moved(batch, self.device)
            visual = self.learner.visual_tokens(part.pixels)
            total = self.learner.patch_loss(visual, part)
            if self.speaks:
                total = self.settings.teacher * total + self.learner.word_loss(visual, part)
            return total / len(parts)

        return self.learn(parts, loss, sum(len(part.pixels) for part in parts))

    def measure(self) -> dict[str, float]:
        return self.measured(SPEAKING if self.speaks else SEEING)

    def _scenes(self) -> Iterator[list[Batch]]:
        """Scenes never shown before: their seeds go on from how many there were (``progress.tokens`` counts scenes)."""
        settings = self.settings
        size, questions = (settings.batch, settings.questions) if self.speaks else (settings.seeing_batch, 1)
        first, reading = (settings.seed << 32) + self.progress.tokens, settings.reading if self.speaks else 0
        part = settings.scenes or -(-settings.batch // settings.workers)
        return batches(Writer(self.tokenizer), self.learner.shape.grid, size, part, questions, first, reading)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on this device."""
    fields = {name: value.to(device) for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return Batch(patches={name: value.to(device) for name, value in batch.patches.items()}, **fields)


def patches_right(learner: Learner, tokenizer: Any, numbers: range) -> dict[str, float]:
    """Of the patches of held-out scenes that show something, how many the dense teacher's heads name rightly."""
    batch = batch_of([held_out(FRESH, number) for number in numbers], Writer(tokenizer), learner.shape.grid, 1)
    batch = moved(batch, learner.model.device)
    with torch.no_grad():
        visual = learner.visual_tokens(batch.pixels)
        shows = batch.patches["kind"] > 0
        right = {name: (head(visual).argmax(-1) == batch.patches[name])[shows] for name, head in learner.patch_heads.items()}
    return {f"patch_{name}": float(value.float().mean()) for name, value in right.items()}


def make(job: Job) -> None:
    """Train, measure on held-out scenes, write ``assets/weights/scenes_vlm.safetensors`` and print its card line."""
    device, old, provenance = choose_device(job.device), None, driver.provenance_of(job)
    settings = driver.settings_for(job, device, Settings)
    if provenance:  # other scenes than the first time
        old, settings = driver.weights_of(job), replace(settings, seed=settings.seed + 1)
        provenance = f"{provenance} on {read_weights(old)[1]['data'].split(' ', 1)[0]} scenes"
    state = prepare(device, settings, old)
    count = sum(value.numel() for value in state.learner.model.parameters())
    print(f"{count / 1e6:.2f} M weights, {len(state.tokenizer)} tokens; {settings}", flush=True)
    driver.train(state, driver.checkpoint_of(job.recipe.name), provenance=provenance)
    learner, tokenizer = state.learner, state.tokenizer

    def save(path: Path, facts: dict[str, str]) -> None:
        shipped.save(learner.model, tokenizer, path, facts)

    data = f"{state.progress.tokens} scenes out of seeds; emoji art of Noto (Apache-2.0) and Twemoji (CC-BY 4.0)"
    found = driver.figures_at_rest(job, state, save, lambda: answered_right(learner, tokenizer), "model.")
    driver.finish(job, state, found, data, save, "Apache-2.0", tokenizer_hash=tokenizer_hash(tokenizer))


def answered_right(learner: Learner, tokenizer: Any) -> dict[str, dict[str, float]]:
    """What is answered rightly about held-out scenes of each kind; some of it is printed."""
    found = {}
    for kind in (FRESH, COMBINATIONS, UNSEEN_DRAWINGS):
        answers = ask(learner, tokenizer, kind, range(1000, 1000 + MEASURED), QUESTIONS)
        found[kind] = figures(kind, answers)
        questions = [answer for answer in answers if answer.exchange.kind != "describe"]
        for answer in answers[:2] + questions[:SHOWN] if kind == FRESH else []:
            right = "right" if answer.right else answer.exchange.answer
            print(f"  {answer.exchange.question} | {answer.reply} | {right}", flush=True)
    return found


def prepare(device: torch.device, settings: Settings, old: Path | None = None) -> ScenesTraining:
    """A fresh model and tokenizer, or those at rest in ``old``.

    The dense teacher's heads are not kept: behind an old model they begin at nothing, and at first learn and do not teach.
    """
    model, tokenizer = (None, train_tokenizer()) if old is None else shipped.load(old)
    learner = Learner(Shape(), len(tokenizer), settings.seed)
    if model is not None:
        learner.model = model.train().requires_grad_(True)
        with torch.no_grad():
            for value in learner.patch_heads.parameters():
                value.zero_()
    learner = learner.to(device)
    learner.learn_names(tokenizer)

    def measure(stage: str) -> dict[str, float]:
        patch_figures = patches_right(learner, tokenizer, range(settings.measured))
        if stage == SEEING:
            return patch_figures
        with parallel.arithmetic(device):
            return patch_figures | figures(FRESH, ask(learner, tokenizer, FRESH, range(settings.measured), QUESTIONS))

    return ScenesTraining(learner, tokenizer, measure, settings)
