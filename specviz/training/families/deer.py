"""Recipe of DEER's drafter: a low-rank change to the masked language model, learned in two stages.

DEER (arXiv 2512.15176). First the answer's continuation from a random cut, then the last R tokens alone, the earliest of
which count most. The paper puts a separator at the cut; here a row predicts the place after it, so that the last token
before the cut speaks for the first place, and the masks themselves say where the text ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specviz.drafters.networks.masked_lm import MaskedLM, load
from specviz.drafters.networks.weights import read_weights
from specviz.models.drafters.lora_heads import CHANGES, digest
from specviz.training import data, driver, features
from specviz.training.data import Dialogues, Markers
from specviz.training.driver import Step
from specviz.training.families import masked
from specviz.training.families.masked import Example, Masked, MaskedTraining
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS, Job

FIRST = "continuation"
SECOND = "refinement"
START = "masked_lm"


@dataclass(frozen=True)
class Settings(masked.Settings):
    """``first`` is the first stage's share of the minutes. In the second up to ``reach`` tokens are hidden, 96 in the
    paper, whose blocks are accepted three times as far. ``emphasis`` is its alpha: 1.01 there, so that the first of them
    counts 2.6 times what the last does; here what is rarely reached can wait. A text has few hidden tokens now, so an
    update reads ``refined`` of them and goes ``calm`` times as far: at the first stage's pace the noise of so few undid more
    at the first place (0.405 to 0.385) than was learned.
    """

    first: float = 0.4
    rank: int = 24
    reach: int = 32
    emphasis: float = 1.2
    calm: float = 0.25
    refined: int = 64


class DeerTraining(MaskedTraining):
    """Both stages, each with an optimizer and a schedule of its own."""

    settings: Settings

    def __init__(
        self, model: MaskedLM, dialogues: Dialogues, markers: Markers, settings: Settings,
        measured: Callable[[], Mapping[str, float]],
    ) -> None:  # fmt: skip
        self.dialogues, self.markers, self.training = dialogues, markers, data.split(dialogues)[0]
        super().__init__(model, settings, self.texts, measured, LowRank(model, settings.rank, settings.seed))

    @property
    def refines(self) -> bool:
        """Whether the second stage has begun."""
        return self.progress.stage == SECOND

    def enter(self, stage: str) -> None:
        """The second stage goes on from the first's average."""
        super().enter(stage)
        assert self.change is not None
        self.move(self.change.matrices)
        self.begin()

    def step(self, share: float) -> Step:
        """The next texts' loss and gradients."""
        if not self.refines and share >= self.settings.first:
            self.use_average()
            self.enter(SECOND)
        return super().step(share)

    def rate(self, share: float) -> float:
        """Each stage warms up and falls by itself."""
        first, peak = self.settings.first, self.settings.peak
        share, peak = ((share - first) / (1 - first), peak * self.settings.calm) if self.refines else (share / first, peak)
        return driver.rate(peak, share, self.optimizer.updates, self.settings.warm)

    def texts(self, update: int) -> Iterator[list[Masked]]:
        """Batches of the stage, every dialogue before any twice; an update has numbers of its own, so that a resumed training
        sees what it would have."""
        settings, seed = self.settings, [self.settings.seed, int(self.refines)]
        size, update = settings.refined if self.refines else settings.batch, update - self.progress.entered
        while True:
            generator = np.random.default_rng([*seed, update])
            chosen = data.in_turn(self.training, update * size, size, seed)
            shares = masked.probabilities(len(chosen), generator)
            examples = [self.example(number, float(share), generator) for number, share in zip(chosen, shares, strict=True)]
            yield masked.in_parts([one.last(self.model.config.window) for one in examples], settings.texts)
            update += 1

    def example(self, number: int, share: float, generator: np.random.Generator) -> Example:
        """One dialogue as an example of the stage."""
        tokens = np.concatenate((np.asarray(self.markers.prefix, np.int64), self.dialogues.of(number)))
        first = len(self.markers.prefix) + int(self.dialogues.prompt[number])
        if not self.refines:
            return masked.continuation(tokens, first, share, generator)
        return masked.refinement(tokens, first, self.settings.reach, self.settings.emphasis, generator)


def prepare(model: MaskedLM, dialogues: Dialogues, markers: Markers, settings: Settings) -> DeerTraining:
    """What trains a change to ``model``, and what is shown of it on held-out answers."""
    held_out: Sequence[int] = data.split(dialogues)[1]
    return DeerTraining(
        model, dialogues, markers, settings, lambda: masked.milestone_figures(model, dialogues, held_out, markers)
    )  # fmt: skip


def make(job: Job) -> None:
    """Train both stages, measure on held-out answers, write ``assets/weights/deer.safetensors``."""
    files, base = data.find(job.data), WEIGHTS / f"{START}.safetensors"
    assets = features.target_assets(job.device)
    dialogues, embedding = data.read_all(files), assets.embedding.to(assets.target.device)
    settings = driver.settings_for(job, embedding.device, Settings)
    model = load(base, embedding, torch.float32, embedding.device)
    state = prepare(model, dialogues, assets.markers, settings)
    print(f"{settings}", flush=True)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    found = driver.figures_at_rest(job, state, state.save, lambda: masked.measured(model, dialogues, assets))
    figures = {"start": json.loads(read_weights(base)[1].get("metrics", "{}")), "deer": found}
    more = {CHANGES: f"{base.name} {digest(base)}", "tokenizer_hash": assets.target.tokenizer_hash}
    driver.finish(job, state, figures, data.dialogues_line(files), state.save, **more)
