"""``train image_samplers``: pairs of coarse and fine picture codes in, the two row-causal samplers out.

Learned on the codes' vectors, and through the frozen decoder on pixels. Peruzzo et al. 2026 (arXiv 2601.05149).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.latent_samplers import LatentSamplers, SamplerConfig, save
from specviz.models.device import choose_device
from specviz.training import driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.image_codes import Coded, coded, vq_model
from specviz.training.registry import Job

DRAWN = 6
"""How many of a batch are also compared in pixels."""
COARSE, FINE = 8, 16


def pairs(data: tuple[Coded, Coded], held_out: bool) -> np.ndarray:
    """Rows of pictures to learn from or kept out, of all concepts that can be drawn."""
    return np.array([row for concept in data[0].part(held_out) for row in concept.rows.values()])


def batch(data: tuple[Coded, Coded], rows: np.ndarray, grounds: np.ndarray) -> tuple[Tensor, Tensor]:
    """Coarse [picture, row, column] and fine codes of these pictures."""
    coarse, fine = (torch.from_numpy(pictures.codes[rows, grounds].astype(np.int64)) for pictures in data)
    return coarse.view(-1, COARSE, COARSE), fine.view(-1, FINE, FINE)


@torch.no_grad()
def measure(net: LatentSamplers, coarse: Tensor, fine: Tensor) -> dict[str, float]:
    """How often the very code is hit, and how near the vectors are, both ways, against copying each code four times."""
    up, down = net.fine(net.vectors(coarse)), net.coarse(net.vectors(fine))
    copied = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)
    true, small = net.vectors(fine), net.vectors(coarse)
    return {
        "up_same": float((net.nearest(up) == fine).float().mean()),
        "up_distance": float((net.vectors(net.nearest(up)) - true).square().sum(1).mean()),
        "copied_same": float((copied == fine).float().mean()),
        "copied_distance": float((net.vectors(copied) - true).square().sum(1).mean()),
        "down_same": float((net.nearest(down) == coarse).float().mean()),
        "down_distance": float((net.vectors(net.nearest(down)) - small).square().sum(1).mean()),
    }


class SamplersTraining(TrainState):
    """Both samplers on pairs of codes, and every other update through the frozen decoder."""

    unit = "codes"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.data = (coded(COARSE), coded(FINE))
        vq, self.codebook = vq_model()
        self.vq = vq.to(device)
        torch.manual_seed(0)
        vectors = self.vq.quantize.embedding.weight.detach().clone()
        self.net = LatentSamplers(SamplerConfig(width=96, layers=3), vectors).to(device)
        self.learning, kept_out = pairs(self.data, held_out=False), pairs(self.data, held_out=True)
        self.generator = np.random.default_rng(4)
        self.held_out = tuple(codes.to(device) for codes in batch(self.data, kept_out, np.zeros(len(kept_out), int)))
        super().__init__(settings, dict(self.net.named_parameters()))

    def drawn(self, vectors: Tensor) -> Tensor:
        """Pixels of the codes' vectors."""
        return self.vq.decoder(self.vq.post_quant_conv(vectors)).float()

    def step(self, share: float) -> Step:
        """The next pictures, in vectors and now and then in pixels."""
        net, many = self.net, self.settings.batch
        rows = self.generator.choice(self.learning, many)
        chosen = tuple(codes.to(self.device) for codes in batch(self.data, rows, self.generator.integers(0, 2, many)))

        def loss(some: Sequence[tuple[Tensor, ...]]) -> Tensor:
            ((coarse, fine),) = some
            up, down = net.fine(net.vectors(coarse)), net.coarse(net.vectors(fine))
            total = distance(net, up, fine) + distance(net, down, coarse)
            if self.progress.updates % 2:
                with torch.no_grad():
                    target_pixels = self.drawn(net.vectors(fine[:DRAWN]))
                total = total + (self.drawn(up[:DRAWN]) - target_pixels).abs().mean()
            return total

        return self.learn([chosen], loss, chosen[1].numel())

    def measure(self) -> dict[str, float]:
        return measure(self.net, *self.held_out)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_samplers.safetensors``."""
    device = choose_device(job.device)
    state = SamplersTraining(driver.settings_for(job, device, Schedule), device)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    figures = driver.figures_at_rest(job, state, partial(save, state.net), state.measure)
    driver.finish(job, state, figures, emoji.line(), partial(save, state.net), emoji.LICENCE, codebook=state.codebook)


def distance(net: LatentSamplers, vectors: Tensor, codes: Tensor) -> Tensor:
    """Squared distance to the codes' vectors, and how clearly the right code is the nearest."""
    rows = vectors.permute(0, 2, 3, 1).flatten(0, 2)
    scores = rows @ net.codebook.T * 12
    return (vectors - net.vectors(codes)).square().sum(1).mean() + 0.1 * F.cross_entropy(scores, codes.flatten())
