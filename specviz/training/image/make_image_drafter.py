"""``train image_drafter``: the image model in, a one-layer drafter out that goes on from its last hidden state.

Both rows of a picture are drafted, with words and without, and what is learned is the distribution after guidance: u + s (c - u).
The network is fed its own outputs for a few steps, as while drafting. Half of the pictures are the target's own.
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

from specviz.drafters.networks.feature_net import FeatureConfig, FeatureNet
from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.image.image import embedding_table, load_image_model, weights_of
from specviz.training.common.loop import Schedule, Step, checkpoint_of, train
from specviz.training.common.parallel import sharing
from specviz.training.feature.unrolling import unroll
from specviz.training.image.image_draft_examples import Example, Examples, Target, guided
from specviz.training.image.image_training import ImageTraining, emoji_line, weights_file
from specviz.training.registry import WEIGHTS, Job

SHARES = (1.0, 0.5, 0.25)
PICTURES = 4
"""An update's; a core learns from one at a time."""
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


class ImageDrafterTraining(ImageTraining):
    """The drafter on pictures of the data and of the target's own, a core on one at a time."""

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
        common = float(share >= LATE)

        def part_loss(part: tuple[Example, list[Tensor]]) -> Tensor:
            return loss(self.net, *part, self.strength, common) / PICTURES

        parts = [(example, starts(example, self.generator)) for example in (self.examples.next() for _ in range(PICTURES))]
        return self.shared(parts, part_loss, PICTURES * self.target.loaded.cells)

    def measure(self) -> dict[str, float]:
        return overlap(self.net, self.measured, self.strength)

    def export(self) -> None:
        """The learned weights, the head among them, with their card."""
        figures, path = self.measure(), weights_file(WEIGHTS, "image_drafter")
        more = {"config": json.dumps(asdict(self.net.config)), "target": read_weights(weights_of("image_ar"))[1]["digest"]}
        data = emoji_line("and the target's own pictures")
        write_weights(path, self.net.state_dict(), self.card("image_drafter", data, figures, **more))
        print(f"written {path.stat().st_size / 1e6:.2f} MB", flush=True)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_drafter.safetensors``."""
    target = Target(load_image_model("emoji-64", "float32", job.device))
    workers = sharing() if target.loaded.device.type == "cpu" else 1
    settings = Schedule(job.minutes, peak=0.004, every=1.0, workers=workers, resume=job.resume)
    train(ImageDrafterTraining(settings, target), checkpoint_of("image_drafter"))
