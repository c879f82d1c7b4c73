"""``train image_drafter``: the image model in, a one-layer drafter out that goes on from its last hidden state.

Both rows of a picture are drafted, with words and without, and what is learned is the law after guidance: u + s (c - u). The
network is fed its own outputs for a few steps, as while drafting. Half of the pictures are the target's own.
Li et al. 2024 (arXiv 2401.15077); with guidance Jang et al. 2025 (arXiv 2410.03355).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafters.feature_net import FeatureConfig, FeatureNet
from specviz.drafters.weights import read_weights, write_weights
from specviz.models.image import LoadedImage, embedding_table, load_image_model, weights_of
from specviz.training import emoji
from specviz.training.image_codes import Batches, coded, prompt_of
from specviz.training.image_loop import Plan, Training, card, weights_file
from specviz.training.image_samples import draw, halved
from specviz.training.image_sheets import network
from specviz.training.registry import WEIGHTS, Job
from specviz.training.unrolling import unroll

SHARES = (1.0, 0.5, 0.25)
OWN_PICTURES = 32
"""How many pictures of its own the target draws at a time."""
TIMES = 3
"""How often each of them is learned from: drawing one takes as long as learning from two."""
MEASURED = 24


class Target:
    """The frozen image model: hidden states, guided laws, and pictures of its own."""

    def __init__(self, loaded: LoadedImage) -> None:
        self.loaded = loaded
        self.net = network(loaded)
        self.shape = self.net.shape
        self.fast = halved(self.net)

    @torch.no_grad()
    def read(self, prompts: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Features [row, place, hidden] and logits [row, cell, code] of prompts and codes."""
        hidden = self.net.hidden(prompts, codes)
        logits = self.net.logits(hidden[:, prompts.shape[1] - 1 : -1]).float()
        return hidden.float(), logits

    def own(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], seed: int) -> Tensor:
        """Pictures of its own [picture, cell] at temperature 1."""
        return draw(self.fast, rows, self.loaded.cells, self.loaded.guidance, seed)


def fresh(target: Target) -> FeatureNet:
    """A drafter that begins by repeating its feature, and looks where the target's last layer looks; its head is learned."""
    loaded, shape = target.loaded, target.shape
    torch.manual_seed(0)
    config = FeatureConfig(
        vocab_size=loaded.first_code + loaded.codes, hidden=shape.width, heads=shape.heads, kv_heads=shape.heads,
        head_size=shape.width // shape.heads, inner=shape.inner, taps=(shape.layers,), wide=False, theta=shape.theta,
    )  # fmt: skip
    head = "model.generation_head."
    both = target.net[head + "vision_head.weight"] @ target.net[head + "proj_out.weight"]
    net = FeatureNet(config, embedding_table(loaded.model, loaded.first_code).clone(), both, None)
    last = f"model.language_model.layers.{shape.layers - 1}."
    with torch.no_grad():
        for name, value in net.layer.named_parameters():
            value.copy_(target.net[last + name])
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value.zero_()  # what the last layer adds is meant for a stream much larger than a feature
        net.fc.weight[:, shape.width :] = torch.eye(shape.width)
    del net.head
    net.head = nn.Parameter(both.detach().clone())  # type: ignore[assignment]
    return net


class Lessons:
    """Pairs of rows with features and guided laws, from the data and from the target's own drawing."""

    def __init__(self, target: Target, held_out: bool, seed: int = 3) -> None:
        self.target = target
        loaded = target.loaded
        self.batches = Batches(coded(loaded.grid), loaded.prompts, loaded.device, seed)  # type: ignore[arg-type]
        self.concepts = self.batches.data.part(held_out)
        self.chance = np.random.default_rng(seed)
        self.waiting: list[tuple[tuple[int, ...], tuple[int, ...], Tensor]] = []
        self.drawn = 0

    def refill(self, count: int = OWN_PICTURES) -> None:
        """Pictures of the target's own, and as many of the data."""
        rows, given = [], []
        for _ in range(count):
            concept = self.concepts[int(self.chance.integers(len(self.concepts)))]
            style = emoji.STYLES[int(self.chance.integers(len(emoji.STYLES)))]
            found = self.target.loaded.prompts.rows(prompt_of(concept, style))
            rows.append((found.conditional, found.unconditional))
            given.append(torch.from_numpy(self.batches.data.codes[concept.rows[style], 0]).long())
        own = self.target.own(rows, seed=self.drawn)
        self.drawn += 1
        pairs = [(*row, codes) for row, codes in zip(rows, own, strict=True)]
        self.waiting += pairs * TIMES
        if self.drawn > 1:
            self.waiting += [(*row, codes.to(own.device)) for row, codes in zip(rows, given, strict=True)]

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [row, token], features [row, token, hidden] and the guided log-law [cell, code] of a picture."""
        if not self.waiting:
            self.refill()
        with_words, without, codes = self.waiting.pop(int(self.chance.integers(len(self.waiting))))
        prompts = torch.tensor([with_words, without], device=codes.device)
        features, logits = self.target.read(prompts, codes.expand(2, -1))
        tokens = torch.cat((prompts, (codes + self.target.loaded.first_code).expand(2, -1)), dim=1)
        return tokens, features, guided(logits[0], logits[1], self.target.loaded.guidance)


@torch.no_grad()
def linear_start(net: FeatureNet, lessons: Lessons, words: int, pictures: int = 8) -> None:
    """The head that, by least squares with a ridge, tells the target's logits from the feature one place before, which is what
    the fresh drafter repeats. The target's own head is far too sure for such a feature: the surer the target, the more
    updates would go into growing modest."""
    features = [lessons.next()[1] for _ in range(pictures)]
    before = torch.cat([one[:, words - 2 : -2].flatten(0, 1) for one in features])
    logits = torch.cat([lessons.target.net.logits(one[:, words - 1 : -1]).flatten(0, 1) for one in features]).float()
    ridge = len(before) * torch.eye(before.shape[1], device=before.device)
    net.head.copy_(torch.linalg.solve(before.T @ before + ridge, before.T @ logits).T)


def guided(with_words: Tensor, without: Tensor, strength: float) -> Tensor:
    """Log-probabilities after guidance."""
    return (without + strength * (with_words - without)).log_softmax(-1)


def starts(words: int, length: int, generator: torch.Generator) -> list[Tensor]:
    """The starts of each step: all that draft a code, then random shares of them. Start i drafts token i + 2 first."""
    order = torch.rand(length, generator=generator)
    found = []
    for step, share in enumerate(SHARES):
        inside = torch.zeros(length, dtype=torch.bool)
        inside[words - 2 : length - 2 - step] = True
        found.append((inside & (order <= share)).nonzero()[:, 0])
    return found


def laws(net: FeatureNet, lesson: tuple[Tensor, Tensor, Tensor], rows: list[Tensor], strength: float) -> list[Tensor]:
    """The guided log-law of each step [start, code]."""
    tokens, features, _ = lesson
    both = [unroll(net, tokens[row], features[row], rows) for row in (0, 1)]
    return [guided(net.logits(one), net.logits(other), strength) for one, other in zip(*both, strict=True)]


def loss(
    net: FeatureNet, lesson: tuple[Tensor, Tensor, Tensor], words: int, strength: float, generator: torch.Generator
) -> Tensor:
    """Cross-entropy to the guided law at every step, and distance to the target's features."""
    tokens, features, law = lesson
    rows = starts(words, tokens.shape[1], generator)
    total = torch.zeros(())
    both = [unroll(net, tokens[row], features[row], rows) for row in (0, 1)]
    for step, (one, other) in enumerate(zip(*both, strict=True)):
        wanted = law[rows[step] + 2 + step - words]
        found = guided(net.logits(one), net.logits(other), strength)
        total = total - 0.8**step * (wanted.exp() * found).sum(-1).mean()
        for row, output in ((0, one), (1, other)):
            total = total + 0.8**step * F.smooth_l1_loss(output, features[row][rows[step] + 1 + step])
    return total


@torch.no_grad()
def overlap(
    net: FeatureNet, lessons: Sequence[tuple[Tensor, Tensor, Tensor]], words: int, strength: float
) -> dict[str, float]:
    """How likely a code drawn from the drafter is accepted at temperature 1, by depth, on held-out concepts."""
    sums = np.zeros(len(SHARES))
    for lesson in lessons:
        length = lesson[0].shape[1]
        places = torch.arange(words - 2, length - 2 - len(SHARES))
        found = laws(net, lesson, [places] * len(SHARES), strength)
        for step, law in enumerate(found):
            wanted = lesson[2][places + 2 + step - words]
            sums[step] += float(torch.minimum(law.exp(), wanted.exp()).sum(-1).mean())
    return {f"overlap{step + 1}": float(value / len(lessons)) for step, value in enumerate(sums)}


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_drafter.safetensors``."""
    target = Target(load_image_model("emoji-64", "float32", job.device))
    net = fresh(target).to(target.loaded.device)
    words, strength = 16, target.loaded.guidance
    lessons, kept_out = Lessons(target, held_out=False), Lessons(target, held_out=True, seed=9)
    kept_out.refill(MEASURED)
    measured = [kept_out.next() for _ in range(MEASURED)]
    training = Training("image_drafter", dict(net.named_parameters()), Plan(job.minutes, peak=0.004), job.resume, {})
    generator = torch.Generator().manual_seed(0)
    if not training.progress.updates:
        linear_start(net, lessons, words)

    def step(share: float) -> dict[str, float]:
        total = sum(loss(net, lessons.next(), words, strength, generator) for _ in range(4)) / 4
        total.backward()
        training.progress.tokens += 4 * target.loaded.cells
        return {"loss": float(total.detach())}

    def look() -> dict[str, float]:
        return overlap(net, measured[:6], words, strength)

    def export() -> None:
        held = {name: value.data.clone() for name, value in net.named_parameters()}
        for name, value in training.averaged().items():
            net.get_parameter(name).data.copy_(value)
        write(net, training, overlap(net, measured, words, strength))
        for name, value in held.items():
            net.get_parameter(name).data.copy_(value)

    training.run(step, look, export)


def write(net: FeatureNet, training: Training, metrics: dict[str, float]) -> None:
    """The learned weights, the head among them, with their card."""
    facts = read_weights(weights_of("image_ar"))[1]
    data = f"emoji {emoji.digest()} and the target's own pictures, one concept in {emoji.HELD_OUT_EVERY} kept out"
    more = {"config": json.dumps(asdict(net.config)), "target": facts["digest"]}
    path = weights_file(WEIGHTS, "image_drafter")
    write_weights(path, net.state_dict(), card("image_drafter", data, training.progress, metrics, **more))
    print(
        f"written {path.stat().st_size / 1e6:.2f} MB;",
        "  ".join(f"{k} {v:.3f}" for k, v in metrics.items()),
        flush=True,
    )
