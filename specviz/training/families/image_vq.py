"""``train image_vq``: emoji art in, the picture tokenizer out: one code for 4 x 4 pixels, the same for 64 and 32 pixels.

The class is transformers' ``JanusVQVAE``. Its decoder reads codes brought to length one, so training keeps everything on the
unit sphere: first without codes, then with a codebook started from what the encoder found by then.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from specviz.drafters.networks.weights import write_weights
from specviz.errors import BadInput
from specviz.models.device import choose_device
from specviz.models.image.image_shape import SHIPPED_VQ, TextShape, janus_config
from specviz.training import driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.registry import Job


class Codebook:
    """``vectors`` [code, dim] of length one, moved in place."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.sums = vectors.clone()
        self.counts = torch.ones(len(vectors), device=vectors.device)

    def nearest(self, places: Tensor) -> Tensor:
        """Codes [place] nearest to vectors [place, dim]."""
        return (places @ self.vectors.T).argmax(-1)

    @torch.no_grad()
    def start(self, places: Tensor, rounds: int = 12) -> None:
        """Spread the codes over what was encoded [place, dim]; a thousand equal backgrounds count as few."""
        cells, inverse, counts = torch.unique((places * 6).round(), dim=0, return_inverse=True, return_counts=True)
        means = torch.zeros_like(cells).index_add_(0, inverse, places)
        weights = counts.float().sqrt()
        order = torch.randperm(len(cells), device=places.device)[: len(self.vectors)]
        chosen = F.normalize(means[order], dim=-1)
        self.vectors[: len(chosen)] = chosen
        points = F.normalize(means, dim=-1) * weights[:, None]
        for _ in range(rounds):
            sums = torch.zeros_like(self.vectors).index_add_(0, self.nearest(points), points)
            filled = sums.norm(dim=-1) > 0
            self.vectors[filled] = F.normalize(sums[filled], dim=-1)
        self.sums.copy_(self.vectors)
        self.counts.fill_(1.0)

    @torch.no_grad()
    def follow(self, places: Tensor, codes: Tensor, keep: float = 0.99) -> None:
        """Move towards what was encoded as each code."""
        used = torch.bincount(codes, minlength=len(self.vectors)).float()
        self.sums.mul_(keep).add_(torch.zeros_like(self.sums).index_add_(0, codes, places), alpha=1 - keep)
        self.counts.mul_(keep).add_(used, alpha=1 - keep)
        moved = self.counts > 1e-3
        self.vectors[moved] = F.normalize(self.sums[moved], dim=-1)

    @torch.no_grad()
    def revive(self, places: Tensor, codes: Tensor, below: float) -> int:
        """Put codes used less often than ``below`` times a batch where the error is large. How many."""
        dead = (self.counts < below).nonzero()[:, 0]
        if len(dead) == 0:
            return 0
        error = 1 - (places * self.vectors[codes]).sum(-1)
        chosen = torch.multinomial(error.clamp_min(1e-6) ** 2, min(len(dead), 8))
        dead = dead[torch.randperm(len(dead))[: len(chosen)]]
        self.vectors[dead] = places[chosen]
        self.sums[dead] = places[chosen] * below * 4
        self.counts[dead] = below * 4
        return len(dead)


CROPS, WHOLE = 20, 5
FREE = 0.12
"""The share of the time before there are codes."""
FROZEN = 0.85
"""From this share on the codebook stands still."""


class Tokenizer:
    """The network in training."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        config = janus_config(SHIPPED_VQ, TextShape(), emoji.SIDE // 4)["vq_config"]
        self.net = cast(Any, JanusVQVAE(JanusVQVAEConfig(**config))).to(device)
        for name, weight in self.net.named_parameters():
            if name.endswith(("conv2.weight", "proj_out.weight")):
                weight.data.zero_()
        self.codebook = Codebook(F.normalize(self.net.quantize.embedding.weight.data, dim=-1))
        self.device = device
        self.encoded: list[Tensor] = []
        self.coded = torch.zeros(1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [batch, rgb, row, column] to unit vectors [batch, dim, row, column], float32."""
        return F.normalize(self.net.quant_conv(self.net.encoder(pixels)).float(), dim=1)

    def decode(self, vectors: Tensor) -> Tensor:
        """And back."""
        return self.net.decoder(self.net.post_quant_conv(vectors)).float()

    def quantised(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unit vectors to those of their codes, with the rows [place, dim] and their codes."""
        rows = vectors.permute(0, 2, 3, 1).reshape(-1, vectors.shape[1])
        codes = self.codebook.nearest(rows.detach())
        code_vectors = self.codebook.vectors[codes].view(vectors.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
        return code_vectors, rows.detach(), codes

    def loss(self, pixels: Tensor, share: float) -> Tensor:
        """Reconstruction in pixels and edges, and how far from its code a vector is."""
        vectors = self.encode(pixels)
        if share < FREE:
            self.encoded = [*self.encoded[-300:], vectors.detach().permute(0, 2, 3, 1).reshape(-1, vectors.shape[1])]
            return reconstruction(self.decode(F.normalize(vectors + 0.1 * torch.randn_like(vectors), dim=1)), pixels)
        if not self.coded:
            self.codebook.start(torch.cat(self.encoded)[-120_000:])
            self.encoded, self.coded[0] = [], 1
        code_vectors, rows, codes = self.quantised(vectors)
        if share < FROZEN:
            self.codebook.follow(rows, codes)
            self.codebook.revive(rows, codes, below=0.02)
        drawn = self.decode(vectors + (code_vectors - vectors).detach())
        return reconstruction(drawn, pixels) + 0.5 * (1 - (vectors * code_vectors.detach()).sum(1)).mean()


def reconstruction(drawn: Tensor, pixels: Tensor) -> Tensor:
    """Mean absolute and squared error, and the same of neighbouring pixels' differences."""
    error = drawn - pixels
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 2 * error.square().mean() + 0.5 * edges


class Pictures:
    """Batches: crops of 32 pixels where something is drawn, whole pictures of 32, and of 64."""

    def __init__(self, art: emoji.Emoji, device: torch.device, seed: int = 1) -> None:
        self.art, self.device = art, device
        self.rows = [row for concept in art.part(held_out=False) for row in concept.rows.values()]
        self.generator = np.random.default_rng(seed)

    def draw(self, count: int) -> Tensor:
        """Whole pictures over grounds, mirrored now and then."""
        rows = self.generator.choice(self.rows, count)
        palette = np.array(list(emoji.GROUNDS.values()))
        grounds = palette[np.where(self.generator.random(count) < 0.5, 0, self.generator.integers(0, len(palette), count))]
        free = self.generator.random(count) < 0.15
        grounds = np.where(free[:, None], self.generator.integers(0, 256, (count, 3)), grounds)
        pixels = torch.from_numpy(self.art.on(rows, grounds)).to(self.device)
        return pixels.flip(-1) if self.generator.random() < 0.5 else pixels

    def small(self) -> Tensor:
        """Pictures of 32 pixels: a third whole, the rest crops."""
        pixels = self.draw(CROPS)
        whole = F.avg_pool2d(pixels[: CROPS // 3], 2)
        corners = self.generator.integers(0, 9, (CROPS, 2)) * 4
        crops = [pixels[place, :, y : y + 32, x : x + 32] for place, (y, x) in enumerate(corners) if place >= CROPS // 3]
        return torch.cat((whole, torch.stack(crops)))


def held_out_pixels(art: emoji.Emoji, count: int) -> Tensor:
    """Pictures of concepts nobody learned from, half of them on colours, [picture, rgb, row, column]."""
    rows = [row for concept in art.part(held_out=True) for row in concept.rows.values()][:count]
    palette = np.array(list(emoji.GROUNDS.values()))
    return torch.from_numpy(art.on(rows, palette[np.arange(len(rows)) % 3 * (np.arange(len(rows)) % 2)]))


@torch.no_grad()
def measure(tokenizer: Tokenizer, art: emoji.Emoji, count: int = 204) -> dict[str, float]:
    """On concepts nobody learned from: signal to noise in decibels at 64 and 32 pixels, and how many codes are in use."""
    pixels = held_out_pixels(art, count)
    figures = {}
    used = []
    for name, batch in (("psnr64", pixels), ("psnr32", F.avg_pool2d(pixels, 2))):
        errors = []
        for part in batch.to(tokenizer.device).split(34):
            vectors, _, codes = tokenizer.quantised(tokenizer.encode(part))
            errors.append((tokenizer.decode(vectors).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4)
            used.append(codes)
        figures[name] = float(-10 * torch.cat(errors).log10().mean())
    distribution = torch.bincount(torch.cat(used), minlength=SHIPPED_VQ.codes).float()
    distribution = distribution / distribution.sum()
    figures["codes_used"] = float((distribution > 0).sum())
    figures["perplexity"] = math.exp(float(-(distribution * distribution.clamp_min(1e-12).log()).sum()))
    return figures


class VqTraining(TrainState):
    """The tokenizer on crops and whole pictures; its codebook follows what it sees and belongs to the checkpoint."""

    unit = "pictures"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.art, self.tokenizer = emoji.load(), Tokenizer(device)
        self.pictures, codes = Pictures(self.art, device), self.tokenizer.codebook
        buffers = {"vectors": codes.vectors, "sums": codes.sums, "counts": codes.counts, "coded": self.tokenizer.coded}
        leaves = {name: value for name, value in self.tokenizer.net.named_parameters() if not name.startswith("quantize")}
        super().__init__(settings, leaves, buffers=buffers)

    def step(self, share: float) -> Step:
        """Small pictures, and after a while whole ones beside them."""
        parts = [self.pictures.small(), *([self.pictures.draw(WHOLE)] if share > 0.3 else [])]

        def loss(some: Sequence[Tensor]) -> Tensor:
            (pixels,) = some
            return self.tokenizer.loss(pixels, share) * 0.5

        return self.learn(parts, loss, sum(map(len, parts)))

    def measure(self) -> dict[str, float]:
        return measure(self.tokenizer, self.art, 51) if self.tokenizer.coded else {}


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_vq.safetensors``. Raises BadInput where the time is over
    before there are codes."""
    device = choose_device(job.device)
    state = VqTraining(driver.settings_for(job, device, Schedule), device)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    if not state.tokenizer.coded:
        raise BadInput("The time was over before there were codes: train for more --minutes, or go on with --resume.")
    vectors = state.tokenizer.codebook.vectors

    def save(path: Path, facts: dict[str, str]) -> None:
        tensors = {f"model.vqmodel.{key}": value.data for key, value in state.leaves.items()}
        write_weights(path, {**tensors, "model.vqmodel.quantize.embedding.weight": vectors}, facts)

    codebook = hashlib.sha256(vectors.cpu().numpy().tobytes()).hexdigest()[:16]
    figures = measure(state.tokenizer, state.art)
    driver.finish(job, state, figures, emoji.line(), save, emoji.LICENCE, codebook=codebook)
