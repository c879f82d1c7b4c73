"""How the small vision-language model learns: first to see, from a dense teacher, then to see and speak together.

The dense teacher says of every patch what it shows; with it the picture's tokens mean something before language asks for
them, which saves most of the time that grounding words in pixels takes from nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.networks.weights import read_weights
from specviz.models.device import choose_device, cpu_has_bfloat16
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.training.common import parallel
from specviz.training.common.card import card, print_card
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, checkpoint_of, provenance_of, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import sharing
from specviz.training.families.scenes import COMBINATIONS, FRESH, UNSEEN_DRAWINGS, held_out
from specviz.training.families.scenes_answers import ask, figures
from specviz.training.families.scenes_batches import Batch, Writer, batch_of, batches, train_tokenizer
from specviz.training.families.scenes_net import Learner, Shape, training_attention
from specviz.training.registry import WEIGHTS, Job

SEEING, SPEAKING = "seeing", "speaking"
MEASURED = 80
QUESTIONS = 6
SHOWN = 10


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
            visual = self.learner.visual_tokens(part.pixels)
            total = self.learner.patch_loss(visual, part)
            if self.speaks:
                total = self.settings.teacher * total + self.learner.word_loss(visual, part)
            return total / len(parts)

        with training_attention(self.learner.model):
            leaf_gradients, value = parallel.gradients(parts, loss, list(leaves.values()), self.settings.workers)
        gradients = {name: Learner.shaped(name, gradient) for name, gradient in zip(leaves, leaf_gradients, strict=True)}
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
        visual = learner.visual_tokens(batch.pixels)
        shows = batch.patches["kind"] > 0
        right = {name: (head(visual).argmax(-1) == batch.patches[name])[shows] for name, head in learner.patch_heads.items()}
    return {f"patch_{name}": float(value.float().mean()) for name, value in right.items()}


def make(job: Job) -> None:
    """Train, measure on held-out scenes, write ``assets/weights/scenes_vlm.safetensors`` and print its card line."""
    device = choose_device(job.device)
    settings = settings_for(device, job)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    old = path if provenance_of(job.recipe.name, path, settings.resume) else None
    if old is not None:  # other scenes than the first time
        settings = replace(settings, seed=settings.seed + 1)
    state = prepare(device, settings, old)
    count = sum(value.numel() for value in state.learner.model.parameters())
    print(f"{count / 1e6:.2f} M weights, {len(state.tokenizer)} tokens; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name), provenance="" if old is None else spent_on(old))
    finish(state, progress, path)


def settings_for(device: torch.device, job: Job) -> Settings:
    """A GPU takes wide batches; a processor a few scenes a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return Settings(batch=64, seeing_batch=128, part=64, **common)
    workers = sharing()  # every core takes scenes of its own
    return Settings(workers=workers, part=-(-Settings.batch // workers), **common)


def prepare(device: torch.device, settings: Settings, old: Path | None = None) -> ScenesTraining:
    """A fresh model and tokenizer, or those at rest in ``old``; bfloat16 products where the machine is faster in them.

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
    rough = torch.bfloat16 if device.type == "cuda" or cpu_has_bfloat16() else None

    def measure(stage: str) -> dict[str, float]:
        patch_figures = patches_right(learner, tokenizer, range(settings.measured))
        if stage == SEEING:
            return patch_figures
        with torch.autocast(device.type, torch.bfloat16, enabled=rough is not None):
            return patch_figures | figures(FRESH, ask(learner, tokenizer, FRESH, range(settings.measured), QUESTIONS))

    return ScenesTraining(learner, tokenizer, rough, measure, settings)


def spent_on(path: Path) -> str:
    """What the card of these weights says was spent on them."""
    _, card = read_weights(path)
    return f"{card['spent']} on {card['data'].split(' ', 1)[0]} scenes"


def finish(state: ScenesTraining, progress: Progress, path: Path) -> None:
    """Write the weights, read them back as they ship, measure those, and print ten examples and the card's line."""
    learner, tokenizer = state.learner, state.tokenizer
    device = learner.model.device
    data = f"{progress.tokens} scenes out of seeds; emoji art of Noto (Apache-2.0) and Twemoji (CC-BY 4.0)"
    facts = card(
        "scenes_vlm", state.settings, data, progress.spent(device.type, "scenes"), {}, "Apache-2.0",
        tokenizer_hash=tokenizer_hash(tokenizer),
    )  # fmt: skip
    shipped.save(learner.model, tokenizer, path, facts)
    learner.model = shipped.load(path)[0].to(device)
    figures_by_kind = {}
    for kind in (FRESH, COMBINATIONS, UNSEEN_DRAWINGS):
        answers = ask(learner, tokenizer, kind, range(1000, 1000 + MEASURED), QUESTIONS)
        figures_by_kind[kind] = {name: round(value, 3) for name, value in figures(kind, answers).items()}
        print(kind, figures_by_kind[kind], flush=True)
        for answer in (
            answers[:2] + [answer for answer in answers if answer.exchange.kind != "describe"][:SHOWN] if kind == FRESH else []
        ):
            print(
                f"  {answer.exchange.question} | {answer.reply} | {'right' if answer.right else answer.exchange.answer}",
                flush=True,
            )
    facts["metrics"] = json.dumps(figures_by_kind)
    shipped.save(learner.model, tokenizer, path, facts)
    print_card(path, facts)
