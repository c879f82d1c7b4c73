"""``train image_score``: an image encoder and a prompt encoder that score how well an image fits a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.weights import write_weights
from specviz.models.image.image_score import SIDE, ScoreNet
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.emoji import drawable, prompt_of, varied_prompt, word_prompts

AMONG = 64
"""Maximum number of candidate prompts per picture in the accuracy measurement."""


class ScoreTraining(TrainState):
    """Training of both encoders on 32-pixel pictures, with noise and shifts, and prompts."""

    unit = "pictures"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        torch.manual_seed(0)
        self.prompts, self.art, self.generator = word_prompts(), emoji.load(), np.random.default_rng(5)
        self.learning, self.kept_out = (
            [concept for concept in self.art.part(held_out) if drawable(concept)] for held_out in (False, True)
        )
        self.net = ScoreNet(self.prompts.size).to(device)
        super().__init__(settings, self.net)

    def examples(self, asked: Sequence[tuple[emoji.Concept, str, str, str]]) -> tuple[Tensor, Tensor]:
        """Return pictures [picture, rgb, row, column] from -1 to 1, and prompts [picture, word]."""
        rows = [concept.rows[style] for concept, style, _, _ in asked]
        grounds = np.array([emoji.GROUNDS[ground] for *_, ground, _ in asked])
        pixels = F.avg_pool2d(torch.from_numpy(self.art.on(rows, grounds)), emoji.SIDE // SIDE)
        return pixels, torch.tensor([self.prompts.rows(prompt).conditional for *_, prompt in asked])

    def batch(self, many: int) -> tuple[Tensor, Tensor]:
        """Return pictures of ``many`` distinct concepts, with prompts."""
        generator, asked = self.generator, []
        for place in generator.permutation(len(self.learning))[:many]:
            concept, style = self.learning[place], emoji.STYLES[int(generator.integers(len(emoji.STYLES)))]
            coloured = list(emoji.GROUNDS)[int(generator.integers(1, len(emoji.GROUNDS)))]
            ground = coloured if generator.random() < 0.3 else "white"
            asked.append((concept, style, ground, varied_prompt(concept, style, ground, generator)))
        pixels, words = self.examples(asked)
        pixels = pixels.roll(tuple(int(shift) for shift in generator.integers(-2, 3, 2)), dims=(2, 3))
        return pixels + 0.08 * torch.randn_like(pixels), words

    def step(self, share: float) -> Step:
        """Return gradients of the contrastive loss: each picture selects a prompt of the batch, and each prompt a picture."""
        batch = tuple(tensor.to(self.device) for tensor in self.batch(self.settings.batch))

        def loss(some: Sequence[tuple[Tensor, ...]]) -> Tensor:
            logits = self.net.logits(*some[0])
            own = torch.arange(len(logits), device=self.device)
            return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

        return self.learn([batch], loss, len(batch[0]))

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return how often the right prompt scores best among the candidates, and the number of candidates."""
        metrics, net = dict[str, float](), copy.deepcopy(self.net).cpu()
        for name, concepts in (("learned", self.learning[::16]), ("held_out", self.kept_out)):
            styled = [(concept, emoji.STYLES[at % len(emoji.STYLES)]) for at, concept in enumerate(concepts[:AMONG])]
            ranks = net.logits(
                *self.examples([(concept, style, "white", prompt_of(concept, style)) for concept, style in styled])
            )
            first = (ranks <= ranks.diagonal()[:, None]).all(1)
            metrics |= {f"{name}_first": float(first.float().mean()), f"{name}_among": float(len(styled))}
        return metrics

    def save(self, path: Path, card: dict[str, str]) -> None:
        write_weights(path, self.net.state_dict(), {**card, "prompts": self.prompts.description})


def make(job: Job) -> None:
    """Train, measure on learned and held-out concepts, and write ``assets/weights/image_score.safetensors``."""
    emoji.run(job, ScoreTraining)
