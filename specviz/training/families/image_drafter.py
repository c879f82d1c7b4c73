"""``train image_drafter``: the image model in, a one-layer drafter out that goes on from its last hidden state.

Both rows of a picture are drafted, with words and without, and what is learned is the distribution after guidance: u + s (c - u).
The network is fed its own outputs for a few steps, as while drafting. Half of the pictures are the target's own.
Li et al. 2024 (arXiv 2401.15077); with guidance Jang et al. 2025 (arXiv 2410.03355).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafters.networks.feature_net import FeatureConfig, FeatureNet
from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.image.image import LoadedImage, embedding_table, load_image_model, weights_of
from specviz.training import driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.image_codes import coded, prompt_of
from specviz.training.families.image_net import draw, halved, network
from specviz.training.families.unrolling import unroll
from specviz.training.registry import Job

DRAWN = 32
"""How many pictures of its own the target draws at a time; as many of the data go beside them."""
TIMES = 6
"""How often each is learned from."""
SHELF = 256
"""Pictures from which the next is taken: about a megabyte each."""
READ = 8
"""Pictures read together."""

Rows = tuple[Sequence[int], Sequence[int]]
"""Words of a prompt, and of the empty one."""


@dataclass(frozen=True)
class Example:
    """A picture, both ways: ``tokens`` [row, token], ``features`` [row, token, hidden], guided log-``distribution`` [cell,
    code]."""

    tokens: Tensor
    features: Tensor
    distribution: Tensor


class Target:
    """The frozen image model: hidden states, guided distributions, and pictures of its own."""

    def __init__(self, loaded: LoadedImage) -> None:
        self.loaded = loaded
        self.net = network(loaded)
        self.shape = self.net.shape
        self.fast = halved(self.net)

    @torch.no_grad()
    def read(self, rows: Sequence[Rows], codes: Tensor) -> list[Example]:
        """Examples of pictures: their prompts' ``rows`` and ``codes`` [picture, cell]."""
        prompts = torch.tensor([row for pair in rows for row in pair], device=codes.device)
        doubled = codes.repeat_interleave(2, dim=0)
        hidden = self.net.hidden(prompts, doubled)
        logits = self.net.logits(hidden[:, prompts.shape[1] - 1 : -1]).float()
        distributions = guided(logits[0::2], logits[1::2], self.loaded.guidance)
        tokens = torch.cat((prompts, doubled + self.loaded.first_code), dim=1)
        pairs = (rows_of_both.unflatten(0, (-1, 2)) for rows_of_both in (tokens, hidden.float()))
        return [Example(*(tensor.clone() for tensor in parts)) for parts in zip(*pairs, distributions, strict=True)]

    def own(self, rows: Sequence[Rows], seed: int) -> Tensor:
        """Pictures of its own [picture, cell] at temperature 1."""
        return draw(self.fast, rows, self.loaded.cells, self.loaded.guidance, seed)


class Examples:
    """Examples from the data and from the target's own drawing, of the concepts to learn or of those kept out."""

    def __init__(self, target: Target, held_out: bool, seed: int = 3, workers: int = 1) -> None:
        """``workers`` threads share the drawing and the reading, each with torch at one."""
        self.target, self.workers = target, workers
        loaded = target.loaded
        self.data = coded(loaded.grid)
        self.concepts = self.data.part(held_out)
        self.generator = np.random.default_rng(seed)
        self.shelf: list[tuple[Example, int]] = []
        self.drawn = 0

    def prompted_pictures(self, count: int) -> tuple[list[Rows], Tensor]:
        """Prompts by chance, and the data's own pictures of them [picture, cell]."""
        rows: list[Rows] = []
        codes = []
        for _ in range(count):
            concept = self.concepts[int(self.generator.integers(len(self.concepts)))]
            style = emoji.STYLES[int(self.generator.integers(len(emoji.STYLES)))]
            prompt_rows = self.target.loaded.prompts.rows(prompt_of(concept, style))
            rows.append((prompt_rows.conditional, prompt_rows.unconditional))
            codes.append(torch.from_numpy(self.data.codes[concept.rows[style], 0]).long())
        return rows, torch.stack(codes).to(self.target.loaded.device)

    def own(self, count: int) -> list[Example]:
        """Fresh examples of the target's own pictures alone."""
        rows, _ = self.prompted_pictures(count)
        return self._fresh(rows)

    def refill(self) -> None:
        """Pictures of the target's own, and those of the data for the same prompts, onto the shelf."""
        rows, codes = self.prompted_pictures(DRAWN)
        self.shelf += [(example, TIMES) for example in self._fresh(rows, codes)]

    def next(self) -> Example:
        """One of the shelf's."""
        while len(self.shelf) <= SHELF - 2 * DRAWN:
            self.refill()
        place = int(self.generator.integers(len(self.shelf)))
        example, left = self.shelf[place]
        if left > 1:
            self.shelf[place] = (example, left - 1)
        else:
            self.shelf[place] = self.shelf[-1]
            self.shelf.pop()
        return example

    def _fresh(self, rows: Sequence[Rows], codes: Tensor | None = None) -> list[Example]:
        """Examples of the target's own pictures, then of those of ``codes`` [picture, cell] for the same prompts."""

        def part(places: Tensor) -> list[Example]:
            part_rows = [rows[place] for place in places.tolist()]
            examples = self._read(part_rows, self.target.own(part_rows, self.drawn + int(places[0])))
            return examples if codes is None else examples + self._read(part_rows, codes[places])

        with ThreadPoolExecutor(self.workers) as pool:
            examples = [example for part in pool.map(part, torch.arange(len(rows)).chunk(self.workers)) for example in part]
        self.drawn += len(rows)
        return examples

    def _read(self, rows: Sequence[Rows], codes: Tensor) -> list[Example]:
        parts = range(0, len(rows), READ)
        return [example for at in parts for example in self.target.read(rows[at : at + READ], codes[at : at + READ])]


def guided(with_words: Tensor, without: Tensor, strength: float) -> Tensor:
    """Log-probabilities after guidance."""
    return (without + strength * (with_words - without)).log_softmax(-1)


SHARES = (1.0, 0.5, 0.25)
LATE = 0.5
"""From this share of the time on, what both distributions have in common counts beside the cross-entropy: it is what is
accepted."""
MEASURED = 24


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


@torch.no_grad()
def linear_start(net: FeatureNet, examples: Sequence[Example], target: Target) -> None:
    """The head that, by least squares with a ridge, tells the target's logits from the feature one place before, which is what
    the fresh drafter repeats. The target's own head is far too sure for such a feature: the surer the target, the more
    updates would go into growing modest."""
    words = examples[0].tokens.shape[1] - len(examples[0].distribution)
    before = torch.cat([example.features[:, words - 2 : -2].flatten(0, 1) for example in examples])
    logits = torch.cat([target.net.logits(example.features[:, words - 1 : -1]).flatten(0, 1) for example in examples]).float()
    ridge = len(before) * torch.eye(before.shape[1], device=before.device)
    net.head.copy_(torch.linalg.solve(before.T @ before + ridge, before.T @ logits).T)


def starts(example: Example, generator: torch.Generator) -> list[Tensor]:
    """The starts of each step: all that draft a code, then random shares of them. Start i drafts token i + 2 first."""
    length = example.tokens.shape[1]
    order = torch.rand(length, generator=generator)
    rows = []
    for step, share in enumerate(SHARES):
        inside = torch.zeros(length, dtype=torch.bool)
        inside[length - len(example.distribution) - 2 : length - 2 - step] = True
        rows.append((inside & (order <= share)).nonzero()[:, 0].to(example.tokens.device))
    return rows


def distributions(net: FeatureNet, example: Example, rows: list[Tensor], strength: float) -> list[Tensor]:
    """The guided log-distribution of each step [start, code]."""
    both = [unroll(net, example.tokens[row], example.features[row], rows) for row in (0, 1)]
    return [guided(net.logits(with_words), net.logits(without), strength) for with_words, without in zip(*both, strict=True)]


def loss(net: FeatureNet, example: Example, rows: list[Tensor], strength: float, common: float = 0.0) -> Tensor:
    """Cross-entropy to the guided distribution at every step, and distance to the target's features; ``common`` times the
    negative logarithm of what both distributions have in common. ``rows`` are the starts of each step, see :func:`starts`."""
    words = example.tokens.shape[1] - len(example.distribution)
    total = torch.zeros(())
    both = [unroll(net, example.tokens[row], example.features[row], rows) for row in (0, 1)]
    for step, (with_words, without) in enumerate(zip(*both, strict=True)):
        target_distribution = example.distribution[rows[step] + 2 + step - words].exp()
        log_distribution = guided(net.logits(with_words), net.logits(without), strength)
        apart = -(target_distribution * log_distribution).sum(-1).mean()
        if common:
            apart = apart - common * torch.minimum(target_distribution, log_distribution.exp()).sum(-1).log().mean()
        for row, output in ((0, with_words), (1, without)):
            apart = apart + F.smooth_l1_loss(output, example.features[row][rows[step] + 1 + step])
        total = total + 0.8**step * apart
    return total


@torch.no_grad()
def overlap(net: FeatureNet, examples: Sequence[Example], strength: float) -> dict[str, float]:
    """How likely a code drawn from the drafter is accepted at temperature 1, by depth, on held-out concepts."""
    sums = np.zeros(len(SHARES))
    for example in examples:
        length = example.tokens.shape[1]
        words = length - len(example.distribution)
        places = torch.arange(words - 2, length - 2 - len(SHARES), device=example.tokens.device)
        steps = distributions(net, example, [places] * len(SHARES), strength)
        for step, log_distribution in enumerate(steps):
            target_log_distribution = example.distribution[places + 2 + step - words]
            sums[step] += float(torch.minimum(log_distribution.exp(), target_log_distribution.exp()).sum(-1).mean())
    return {f"overlap{step + 1}": float(value / len(examples)) for step, value in enumerate(sums)}


class ImageDrafterTraining(TrainState):
    """The drafter on pictures of the data and of the target's own, a core on one at a time."""

    unit = "codes"

    def __init__(self, settings: Schedule, target: Target) -> None:
        self.target, self.net = target, fresh(target).to(target.loaded.device)
        self.strength = target.loaded.guidance
        self.measured = Examples(target, held_out=True, seed=9, workers=settings.workers).own(MEASURED)
        super().__init__(settings, dict(self.net.named_parameters()))

    def begin(self) -> None:
        """A resumed training meets other pictures; a new one starts from a linear guess."""
        done = self.progress.updates
        self.examples = Examples(self.target, held_out=False, seed=3 + done, workers=self.settings.workers)
        self.generator = torch.Generator().manual_seed(done)
        if not done:
            linear_start(self.net, [self.examples.next() for _ in range(8)], self.target)

    def step(self, share: float) -> Step:
        """The next pictures, each with starts of its own."""
        common, many = float(share >= LATE), self.settings.batch

        def part_loss(part: Sequence[tuple[Example, list[Tensor]]]) -> Tensor:
            return torch.stack([loss(self.net, *one, self.strength, common) for one in part]).sum() / many

        batch = [(example, starts(example, self.generator)) for example in (self.examples.next() for _ in range(many))]
        return self.learn(batch, part_loss, many * self.target.loaded.cells)

    def measure(self) -> dict[str, float]:
        return overlap(self.net, self.measured, self.strength)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_drafter.safetensors``."""
    target = Target(load_image_model("emoji-64", "float32", job.device))
    state = ImageDrafterTraining(driver.settings_for(job, target.loaded.device, Schedule), target)
    driver.train(state, driver.checkpoint_of(job.recipe.name))

    def save(path: Path, facts: dict[str, str]) -> None:
        write_weights(path, state.net.state_dict(), facts)

    more = {"config": json.dumps(asdict(state.net.config)), "target": read_weights(weights_of("image_ar"))[1]["digest"]}
    figures = driver.figures_at_rest(job, state, save, state.measure)
    driver.finish(job, state, figures, emoji.line("and the target's own pictures"), save, emoji.LICENCE, **more)
