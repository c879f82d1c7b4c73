"""``train image_samplers``: two row-causal samplers, from coarse to fine image codes and from fine to coarse.

The loss compares codebook vectors and, through the frozen decoder, pixels. Peruzzo et al. (arXiv 2601.05149).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.latent_samplers import LatentSamplers, SamplerConfig
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.emoji import code_pictures, vq_model

DRAWN = 6
"""Number of pictures per batch to compare in pixels."""
COARSE, FINE = 8, 16


def distance(net: LatentSamplers, vectors: Tensor, codes: Tensor) -> Tensor:
    """Return the squared distance to the vectors of ``codes``, plus the cross-entropy of the codes."""
    rows = vectors.permute(0, 2, 3, 1).flatten(0, 2)
    scores = rows @ net.codebook.T * 12
    return (vectors - net.vectors(codes)).square().sum(1).mean() + 0.1 * F.cross_entropy(scores, codes.flatten())


class SamplersTraining(TrainState):
    """Training of both samplers on pairs of coarse and fine codes."""

    unit = "codes"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.data, (vq, codebook) = (code_pictures(COARSE), code_pictures(FINE)), vq_model()
        self.sources = {"codebook": codebook}
        self.vq, self.generator = vq.to(device), np.random.default_rng(4)
        torch.manual_seed(0)
        vectors = self.vq.quantize.embedding.weight.detach().clone()
        self.net = LatentSamplers(SamplerConfig(width=96, layers=3), vectors).to(device)
        super().__init__(settings, self.net)
        self.learning, kept_out = (
            np.array([row for concept in self.data[0].part(held_out) for row in concept.rows.values()])
            for held_out in (False, True)
        )
        self.held_out = self.pairs(kept_out, np.zeros(len(kept_out), int))

    def pairs(self, rows: np.ndarray, grounds: np.ndarray) -> tuple[Tensor, ...]:
        """Return coarse and fine codes of pictures, each [picture, row, column]."""
        codes = [torch.from_numpy(pictures.codes[rows, grounds].astype(np.int64)) for pictures in self.data]
        return tuple(one.view(-1, grid, grid).to(self.device) for one, grid in zip(codes, (COARSE, FINE), strict=True))

    def step(self, share: float) -> Step:
        """Return loss and gradients of the next pictures; every other update also compares pixels."""
        net, many = self.net, self.settings.batch
        chosen = self.pairs(self.generator.choice(self.learning, many), self.generator.integers(0, 2, many))

        def loss(some: Sequence[tuple[Tensor, ...]]) -> Tensor:
            ((coarse, fine),) = some
            up, down = net.fine(net.vectors(coarse)), net.coarse(net.vectors(fine))
            total = distance(net, up, fine) + distance(net, down, coarse)
            if self.progress.updates % 2:
                with torch.no_grad():
                    pixels = self.decode_vectors(net.vectors(fine[:DRAWN]))
                total = total + (self.decode_vectors(up[:DRAWN]) - pixels).abs().mean()
            return total

        return self.learn([chosen], loss, chosen[1].numel())

    def decode_vectors(self, vectors: Tensor) -> Tensor:
        return self.vq.decoder(self.vq.post_quant_conv(vectors)).float()

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return the share of correct codes in both directions, and the share if each coarse code is copied four times."""
        net, (coarse, fine) = self.net, self.held_out
        copied = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)
        up, down = net.nearest(net.fine(net.vectors(coarse))), net.nearest(net.coarse(net.vectors(fine)))
        guesses = (("up", up, fine), ("copied", copied, fine), ("down", down, coarse))
        return {f"{name}_same": float((guess == codes).float().mean()) for name, guess, codes in guesses}

    def save(self, path: Path, card: dict[str, str]) -> None:
        self.net.save(path, {**card, **self.sources})


def make(job: Job) -> None:
    """Train, measure on held-out concepts, and write ``assets/weights/image_samplers.safetensors``."""
    emoji.run(job, SamplersTraining)
