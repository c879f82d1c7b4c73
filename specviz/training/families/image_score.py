"""``train image_score``: emoji art and names in, two encoders out that find each other's: how well a picture fits a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.weights import write_weights
from specviz.models.device import choose_device
from specviz.models.image.image_score import SIDE, ScoreNet
from specviz.models.image.prompts import WordPrompts
from specviz.training import driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.image_codes import drawable, prompt_of, varied_prompt, word_prompts
from specviz.training.registry import Job

AMONG = 64
"""How many prompts a picture's own is found among when accuracy is measured."""
_WHITE = np.array(emoji.GROUNDS["white"])


class PromptedPictures:
    """Pictures of 32 pixels, a little blurred, noisy and moved, with what is said of them."""

    def __init__(self, prompts: WordPrompts, seed: int = 5) -> None:
        self.art, self.prompts = emoji.load(), prompts
        self.generator = np.random.default_rng(seed)
        self.learning = [concept for concept in self.art.part(held_out=False) if drawable(concept)]
        self.kept_out = [concept for concept in self.art.part(held_out=True) if drawable(concept)]

    def pixels(self, rows: list[int], grounds: np.ndarray) -> Tensor:
        """[picture, rgb, row, column] from -1 to 1."""
        return F.avg_pool2d(torch.from_numpy(self.art.on(rows, grounds)), emoji.SIDE // SIDE)

    def batch(self, many: int) -> tuple[Tensor, Tensor]:
        """Pictures of as many different concepts, and a prompt for each."""
        chosen = self.generator.permutation(len(self.learning))[:many]
        rows, words, grounds = [], [], []
        for place in chosen:
            concept, style = self.learning[place], emoji.STYLES[int(self.generator.integers(len(emoji.STYLES)))]
            coloured = list(emoji.GROUNDS)[int(self.generator.integers(1, len(emoji.GROUNDS)))]
            ground = coloured if self.generator.random() < 0.3 else "white"
            rows.append(concept.rows[style])
            grounds.append(emoji.GROUNDS[ground])
            words.append(self.prompts.rows(varied_prompt(concept, style, ground, self.generator)).conditional)
        pixels = self.pixels(rows, np.array(grounds))
        pixels = pixels.roll(tuple(int(shift) for shift in self.generator.integers(-2, 3, 2)), dims=(2, 3))
        return pixels + 0.08 * torch.randn_like(pixels), torch.tensor(words)

    def questions(self, held_out: bool) -> tuple[Tensor, Tensor]:
        """Pictures on white in one style each, and the plain prompts of their concepts."""
        concepts = (self.kept_out if held_out else self.learning)[:: 1 if held_out else 16][:AMONG]
        styles = [emoji.STYLES[place % len(emoji.STYLES)] for place in range(len(concepts))]
        rows = [concept.rows[style] for concept, style in zip(concepts, styles, strict=True)]
        words = [
            self.prompts.rows(prompt_of(concept, style)).conditional for concept, style in zip(concepts, styles, strict=True)
        ]
        return self.pixels(rows, np.tile(_WHITE, (len(rows), 1))), torch.tensor(words)


@torch.no_grad()
def accuracy(net: ScoreNet, material: PromptedPictures) -> dict[str, float]:
    """How often a picture's own prompt is the best, and among the best five, of those asked together."""
    figures: dict[str, float] = {}
    for name, held_out in (("learned", False), ("held_out", True)):
        pixels, words = material.questions(held_out)
        ranks = net.logits(pixels, words)
        better = (ranks > ranks.diagonal()[:, None]).sum(1)
        figures |= {
            f"{name}_first": float((better == 0).float().mean()),
            f"{name}_five": float((better < 5).float().mean()),
        }
        figures[f"{name}_among"] = float(len(words))
    return figures


class ScoreTraining(TrainState):
    """Both encoders, on pictures and prompts of as many concepts."""

    unit = "pictures"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        torch.manual_seed(0)
        self.prompts = word_prompts()
        self.pictures, self.net = PromptedPictures(self.prompts), ScoreNet(self.prompts.size).to(device)
        super().__init__(settings, dict(self.net.named_parameters()))

    def step(self, share: float) -> Step:
        """The next pictures: each is to find its prompt among all, and each prompt its picture."""
        batch = tuple(tensor.to(self.device) for tensor in self.pictures.batch(self.settings.batch))

        def loss(some: Sequence[tuple[Tensor, ...]]) -> Tensor:
            logits = self.net.logits(*some[0])
            own = torch.arange(len(logits), device=self.device)
            return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

        return self.learn([batch], loss, len(batch[0]))

    def measure(self) -> dict[str, float]:
        return accuracy(copy.deepcopy(self.net).cpu(), self.pictures)


def make(job: Job) -> None:
    """Train, measure on learned and held-out concepts, write ``assets/weights/image_score.safetensors``."""
    device = choose_device("cpu" if job.device == "auto" else job.device)
    state = ScoreTraining(driver.settings_for(job, device, Schedule), device)
    driver.train(state, driver.checkpoint_of(job.recipe.name))

    def save(path: Path, facts: dict[str, str]) -> None:
        write_weights(path, state.net.state_dict(), facts)

    figures, prompts = driver.figures_at_rest(job, state, save, state.measure), state.prompts.description
    driver.finish(job, state, figures, emoji.line(), save, emoji.LICENCE, prompts=prompts)
