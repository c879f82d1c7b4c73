"""``train image_drafter``: a one-layer drafter on the image model's last hidden state.

It drafts both rows of a picture, with words and without, and learns the distribution after guidance: u + s (c - u).
The network reads its own outputs for a few steps, as in drafting. Half of the pictures are the target's own.
Li et al. 2024 (arXiv 2401.15077); with guidance Jang et al. 2025 (arXiv 2410.03355).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.drafting.networks.weights import write_weights
from specviz.models.image.image import LoadedImage, embedding_table
from specviz.models.image.load import load_image_model
from specviz.training import driver
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.emoji import code_pictures, prompt_of
from specviz.training.families.feature import sampled_starts, unroll
from specviz.training.families.image_ar import ADDS, LAYERS, draw, guided, hidden_states

DRAWN = 32
"""Pictures that the target draws at a time; equally many pictures from the data join them."""
TIMES = 6
"""The number of times that training reads each picture."""
SHELF = 256
"""The size of the pool of next pictures, about a megabyte each."""
READ = 8
"""Pictures read together."""
MEASURED = 24
SHARES = (1.0, 0.5, 0.25)
"""Shares of the starts that continue to each step."""
LATE = 0.5
"""The share of the time after which the loss includes the overlap of both distributions, which is the acceptance rate."""


class Example(NamedTuple):
    """A picture with words and without: ``tokens`` [row, token], ``features`` [row, token, hidden], and the guided
    log-``distribution`` [cell, code]."""

    tokens: Tensor
    features: Tensor
    distribution: Tensor

    @property
    def words(self) -> int:
        """The number of tokens before the first code."""
        return self.tokens.shape[1] - len(self.distribution)

    def starts(self, generator: torch.Generator) -> list[Tensor]:
        """The starts of each step: all that draft a code, then random shares of them."""
        return sampled_starts(self.words, self.tokens.shape[1], SHARES, generator)


@torch.no_grad()
def read(loaded: LoadedImage, prompts: Tensor, codes: Tensor) -> list[Example]:
    """The frozen target's features and distributions of pictures: ``prompts`` [picture, row, word], ``codes`` [picture, cell]."""
    doubled, words = codes.repeat_interleave(2, dim=0), prompts.shape[2]
    hidden = hidden_states(loaded.model, prompts.flatten(0, 1), doubled)
    logits = loaded.model.model.generation_head(hidden[:, words - 1 : -1]).float()
    distributions = guided((logits[0::2], logits[1::2]), loaded.guidance).log_softmax(-1)
    tokens = torch.cat((prompts.flatten(0, 1), doubled + loaded.first_code), dim=1)
    both = (rows.unflatten(0, (-1, 2)) for rows in (tokens, hidden.float()))
    return [Example(*(tensor.clone() for tensor in parts)) for parts in zip(*both, distributions, strict=True)]


class Examples:
    """Examples from the data and the target's own drawing, of the training concepts or the held-out ones."""

    def __init__(self, loaded: LoadedImage, held_out: bool, seed: int = 3, workers: int = 1) -> None:
        """``workers`` threads share the drawing and the reading, each with torch on one thread."""
        self.loaded, self.workers, self.data = loaded, workers, code_pictures(loaded.grid)
        self.concepts, self.generator = self.data.part(held_out), np.random.default_rng(seed)
        self.shelf: list[tuple[Example, int]] = []
        self.drawn = 0

    def fresh(self, count: int, given: bool = True) -> list[Example]:
        """The target's pictures for ``count`` random prompts and, with ``given``, the data's for the same prompts."""
        chosen, rows, pictures = self.generator, list[tuple[Sequence[int], Sequence[int]]](), list[np.ndarray]()
        for _ in range(count):
            concept = self.concepts[int(chosen.integers(len(self.concepts)))]
            style = emoji.STYLES[int(chosen.integers(len(emoji.STYLES)))]
            prompt = self.loaded.prompts.rows(prompt_of(concept, style))
            rows.append((prompt.conditional, prompt.unconditional))
            pictures.append(self.data.codes[concept.rows[style], 0])
        prompts = torch.tensor(rows, device=self.loaded.device)
        codes = torch.tensor(np.stack(pictures), device=self.loaded.device).long()

        def part(places: Tensor) -> list[Example]:
            asked, loaded, seed = prompts[places], self.loaded, self.drawn + int(places[0])
            own = draw(loaded.model, asked[:, 0], asked[:, 1], loaded.cells, loaded.guidance, seed).clone()
            pairs = [
                pair
                for kind in (own, *([codes[places]] if given else []))
                for pair in zip(asked.split(READ), kind.split(READ), strict=True)
            ]
            return [example for pair in pairs for example in read(loaded, *pair)]

        with ThreadPoolExecutor(self.workers) as pool:
            parts = list(pool.map(part, torch.arange(count).chunk(self.workers)))
        self.drawn += count
        return [example for examples in parts for example in examples]

    def next(self) -> Example:
        """A random example from the pool; an example leaves the pool after ``TIMES`` reads."""
        while len(self.shelf) <= SHELF - 2 * DRAWN:
            self.shelf += [(example, TIMES) for example in self.fresh(DRAWN)]
        place = int(self.generator.integers(len(self.shelf)))
        example, left = self.shelf[place]
        self.shelf[place] = (example, left - 1) if left > 1 else self.shelf[-1]
        if left == 1:
            self.shelf.pop()
        return example


def new_drafter(loaded: LoadedImage) -> FeatureNet:
    """A drafter that at first repeats its feature, with the target's last layer as its attention; its head is learned."""
    torch.manual_seed(0)
    text, parameters = loaded.model.config.text_config, dict(loaded.model.named_parameters())
    width, heads, layers = text.hidden_size, text.num_attention_heads, text.num_hidden_layers
    config = FeatureConfig(
        vocab_size=loaded.first_code + loaded.codes, hidden=width, heads=heads, kv_heads=heads, head_size=width // heads,
        inner=text.intermediate_size, taps=(layers,), wide=False, theta=float(text.rope_parameters["rope_theta"]),
    )  # fmt: skip
    head = loaded.model.model.generation_head
    both = (head.vision_head.weight @ head.proj_out.weight).detach()
    net = FeatureNet(config, embedding_table(loaded.model, loaded.first_code).clone(), both, None)
    with torch.no_grad():
        for name, value in net.layer.named_parameters():
            value.copy_(parameters[f"{LAYERS}{layers - 1}.{name}"])
            if name.endswith(ADDS):
                value.zero_()  # the last layer's outputs suit a residual stream much larger than a feature
        net.fc.weight[:, width:] = torch.eye(width)
    del net.head
    net.head = nn.Parameter(both.clone())  # type: ignore[assignment]
    return net


@torch.no_grad()
def linear_start(net: FeatureNet, examples: Sequence[Example], head: Callable[[Tensor], Tensor]) -> None:
    """Fit the drafter's head to the logits of the target's ``head`` by ridge regression from the feature one place before.

    The fresh drafter repeats that feature. The target's own head is far too confident on it; the more confident the target, the
    more updates it would take to correct that.
    """
    words = examples[0].words
    before = torch.cat([example.features[:, words - 2 : -2].flatten(0, 1) for example in examples])
    logits = torch.cat([head(example.features[:, words - 1 : -1]).flatten(0, 1) for example in examples]).float()
    ridge = len(before) * torch.eye(before.shape[1], device=before.device)
    net.head.copy_(torch.linalg.solve(before.T @ before + ridge, before.T @ logits).T)


Drafted = tuple[Tensor, Tensor, list[Tensor]]


def draft_steps(net: FeatureNet, example: Example, rows: list[Tensor], strength: float) -> list[Drafted]:
    """Return for each step the target's guided distribution and the log of the drafter's [start, code], and the drafter's two
    outputs [start, hidden]. ``rows`` are the starts of each step; see :meth:`Example.starts`."""
    both = zip(*(unroll(net, example.tokens[row], example.features[row], rows) for row in (0, 1)), strict=True)
    return [
        (
            example.distribution[rows[step] + 2 + step - example.words].exp(),
            guided([net.logits(output) for output in outputs], strength).log_softmax(-1),
            list(outputs),
        )
        for step, outputs in enumerate(both)
    ]


def loss(net: FeatureNet, example: Example, rows: list[Tensor], strength: float, common: float = 0.0) -> Tensor:
    """Sum over steps of the cross-entropy to the guided distribution, the distance to the target's features, and ``common``
    times the negative logarithm of both distributions' overlap."""
    total = torch.zeros(())
    for step, (distribution, own, outputs) in enumerate(draft_steps(net, example, rows, strength)):
        apart = -(distribution * own).sum(-1).mean()
        if common:
            apart = apart - common * torch.minimum(distribution, own.exp()).sum(-1).log().mean()
        for output, features in zip(outputs, example.features, strict=True):
            apart = apart + F.smooth_l1_loss(output, features[rows[step] + 1 + step])
        total = total + 0.8**step * apart
    return total


@torch.no_grad()
def overlap(net: FeatureNet, examples: Sequence[Example], strength: float) -> dict[str, float]:
    """The acceptance probability at temperature 1 of a code drawn from the drafter, by depth."""
    sums = np.zeros(len(SHARES))
    for example in examples:
        last = example.tokens.shape[1] - 2 - len(SHARES)
        places = torch.arange(example.words - 2, last, device=example.tokens.device)
        for step, (distribution, own, _) in enumerate(draft_steps(net, example, [places] * len(SHARES), strength)):
            sums[step] += float(torch.minimum(own.exp(), distribution).sum(-1).mean())
    return {f"overlap{step + 1}": float(value / len(examples)) for step, value in enumerate(sums)}


class ImageDrafterTraining(TrainState):
    """Training of the drafter on pictures of the data and the target's own; each core takes one at a time."""

    unit = "codes"

    def __init__(self, settings: Schedule, loaded: LoadedImage) -> None:
        self.loaded, self.net = loaded, new_drafter(loaded).to(loaded.device)
        self.measured = Examples(loaded, held_out=True, seed=9, workers=settings.workers).fresh(MEASURED, given=False)
        super().__init__(settings, self.net)

    def begin(self) -> None:
        """Start the examples: a resumed run uses a new seed, a new one first fits its head."""
        done = self.progress.updates
        self.examples = Examples(self.loaded, held_out=False, seed=3 + done, workers=self.settings.workers)
        self.generator = torch.Generator().manual_seed(done)
        if not done:
            head: Any = self.loaded.model.model.generation_head
            linear_start(self.net, [self.examples.next() for _ in range(8)], head)

    def step(self, share: float) -> Step:
        """Loss and gradients of the next pictures, each with its own starts."""
        many, own = self.settings.batch, partial(loss, self.net, strength=self.loaded.guidance, common=float(share >= LATE))
        batch = [(example, example.starts(self.generator)) for example in (self.examples.next() for _ in range(many))]

        def part_loss(part: Sequence[tuple[Example, list[Tensor]]]) -> Tensor:
            return torch.stack([own(*one) for one in part]).sum() / many

        return self.learn(batch, part_loss, many * self.loaded.cells)

    def measure(self) -> dict[str, float]:
        return overlap(self.net, self.measured, self.loaded.guidance)

    def save(self, path: Path, card: dict[str, str]) -> None:
        facts = {"config": json.dumps(asdict(self.net.config)), "target": self.loaded.digest}
        write_weights(path, self.net.state_dict(), card | facts)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_drafter.safetensors``."""
    loaded = load_image_model("emoji-64", "float32", job.device)
    state = ImageDrafterTraining(driver.settings_for(job, loaded.device), loaded)
    driver.run(job, state, emoji.line("and the target's own pictures"), licence=emoji.LICENCE)
