"""``train image_score``: emoji art and names in, two encoders out that find each other's: how well a picture fits a prompt."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.weights import write_weights
from specviz.models.device import choose_device
from specviz.models.image.image_score import SIDE, ScoreNet
from specviz.models.image.prompts import WordPrompts
from specviz.training.common.loop import Plan, Training, card, weights_file
from specviz.training.image import emoji
from specviz.training.image.image_codes import drawable, prompt_of, said, word_prompts
from specviz.training.registry import WEIGHTS, Job

BATCH = 96
AMONG = 64
"""How many prompts a picture's own is found among when accuracy is measured."""
_WHITE = np.array(emoji.GROUNDS["white"])


class Material:
    """Pictures of 32 pixels, a little blurred, noisy and moved, with what is said of them."""

    def __init__(self, prompts: WordPrompts, seed: int = 5) -> None:
        self.art, self.prompts = emoji.load(), prompts
        self.generator = np.random.default_rng(seed)
        self.learning = [one for one in self.art.part(held_out=False) if drawable(one)]
        self.kept_out = [one for one in self.art.part(held_out=True) if drawable(one)]

    def pixels(self, rows: list[int], grounds: np.ndarray) -> Tensor:
        """[picture, rgb, row, column] from -1 to 1."""
        return F.avg_pool2d(torch.from_numpy(self.art.on(rows, grounds)), emoji.SIDE // SIDE)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Pictures of as many different concepts, and a prompt for each."""
        chosen = self.generator.permutation(len(self.learning))[:BATCH]
        rows, words, grounds = [], [], []
        for place in chosen:
            concept, style = self.learning[place], emoji.STYLES[int(self.generator.integers(len(emoji.STYLES)))]
            coloured = list(emoji.GROUNDS)[int(self.generator.integers(1, len(emoji.GROUNDS)))]
            ground = coloured if self.generator.random() < 0.3 else "white"
            rows.append(concept.rows[style])
            grounds.append(emoji.GROUNDS[ground])
            words.append(self.prompts.rows(said(concept, style, ground, self.generator)).conditional)
        found = self.pixels(rows, np.array(grounds))
        found = found.roll(tuple(int(one) for one in self.generator.integers(-2, 3, 2)), dims=(2, 3))
        return found + 0.08 * torch.randn_like(found), torch.tensor(words)

    def questions(self, held_out: bool) -> tuple[Tensor, Tensor]:
        """Pictures on white in one style each, and the plain prompts of their concepts."""
        concepts = (self.kept_out if held_out else self.learning)[:: 1 if held_out else 16][:AMONG]
        styles = [emoji.STYLES[place % len(emoji.STYLES)] for place in range(len(concepts))]
        rows = [one.rows[style] for one, style in zip(concepts, styles, strict=True)]
        words = [self.prompts.rows(prompt_of(one, style)).conditional for one, style in zip(concepts, styles, strict=True)]
        return self.pixels(rows, np.tile(_WHITE, (len(rows), 1))), torch.tensor(words)


@torch.no_grad()
def accuracy(net: ScoreNet, material: Material) -> dict[str, float]:
    """How often a picture's own prompt is the best, and among the best five, of those asked together."""
    found = {}
    for name, held_out in (("learned", False), ("held_out", True)):
        pixels, words = material.questions(held_out)
        ranks = net.logits(pixels, words)
        better = (ranks > ranks.diagonal()[:, None]).sum(1)
        found |= {
            f"{name}_first": float((better == 0).float().mean()),
            f"{name}_five": float((better < 5).float().mean()),
        }
        found[f"{name}_among"] = float(len(words))
    return found


def make(job: Job) -> None:
    """Train, measure on learned and held-out concepts, write ``assets/weights/image_score.safetensors``."""
    torch.manual_seed(0)
    device = choose_device("cpu" if job.device == "auto" else job.device)
    prompts = word_prompts()
    material = Material(prompts)
    net = ScoreNet(prompts.size).to(device)
    training = Training("image_score", dict(net.named_parameters()), Plan(job.minutes, peak=0.006), job.resume, {})

    def step(share: float) -> dict[str, float]:
        pixels, words = (one.to(device) for one in material.batch())
        logits = net.logits(pixels, words)
        own = torch.arange(len(logits), device=device)
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        loss.backward()
        return {"loss": float(loss.detach())}

    def export() -> None:
        best = ScoreNet(prompts.size).to(device)
        best.load_state_dict(training.averaged())
        found = accuracy(best.cpu(), material)
        path = weights_file(WEIGHTS, "image_score")
        data = f"emoji {emoji.digest()}, one concept in {emoji.HELD_OUT_EVERY} kept out"
        facts = card("image_score", data, training.progress, found, prompts=prompts.description)
        write_weights(path, best.state_dict(), facts)
        print(f"written {path.stat().st_size / 1e6:.2f} MB; {facts['metrics']}", flush=True)

    training.run(step, dict, export)
