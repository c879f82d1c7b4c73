"""The picture tokenizer, transformers' ``JanusVQVAE``: one code per 4 x 4 pixels of emoji art, at 64 and at 32 pixels.

``train image_vq``: the decoder reads codes of unit length, so training stays on the unit sphere. It starts without codes; the
codebook is then initialised from the encoder's outputs. ``train image_decoder``: a better decoder for the same codes, so that no
other weights need retraining. ``train image_patches``: the mean look of each code, only for display.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import BadInput
from specviz.models.image.image import LoadedImage, tiles
from specviz.models.image.load import load_image_model, weights_of
from specviz.training import driver
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.emoji import PREFIX, code_pictures, new_vq, vq_model

CROPS, WHOLE = 20, 5
"""Pictures per update at 32 pixels (a third of them whole) and at 64 pixels."""
REDRAWN, SHRUNK = 6, 8
"""Pictures per update of the decoder alone: at 64 pixels, and shrunk to 32."""
FREE = 0.12
"""The share of the time, at the start, without codes."""
FROZEN = 0.85
"""The share of the time after which the codebook is frozen."""
MEASURED = 204
"""Held-out pictures for the figures."""
BATCH = 64
"""Pictures per pass when patches are averaged."""


class Codebook:
    """A codebook: ``vectors`` [code, dim] of unit length, updated in place."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors, self.sums = vectors, vectors.clone()
        self.counts = torch.ones(len(vectors), device=vectors.device)

    def nearest(self, places: Tensor) -> Tensor:
        """The codes [place] nearest to vectors [place, dim]."""
        return (places @ self.vectors.T).argmax(-1)

    @torch.no_grad()
    def start(self, places: Tensor, rounds: int = 12) -> None:
        """Spread the codes over the encoder's outputs [place, dim] by k-means, giving repeated vectors (grounds) less weight."""
        cells, inverse, counts = torch.unique((places * 6).round(), dim=0, return_inverse=True, return_counts=True)
        means = torch.zeros_like(cells).index_add_(0, inverse, places)
        order = torch.randperm(len(cells), device=places.device)[: len(self.vectors)]
        self.vectors[: len(order)] = F.normalize(means[order], dim=-1)
        points = F.normalize(means, dim=-1) * counts.float().sqrt()[:, None]
        for _ in range(rounds):
            sums = torch.zeros_like(self.vectors).index_add_(0, self.nearest(points), points)
            filled = sums.norm(dim=-1) > 0
            self.vectors[filled] = F.normalize(sums[filled], dim=-1)
        self.sums.copy_(self.vectors)
        self.counts.fill_(1.0)

    @torch.no_grad()
    def follow(self, places: Tensor, codes: Tensor, keep: float = 0.99) -> None:
        """Move each code towards the mean of the vectors assigned to it."""
        used = torch.bincount(codes, minlength=len(self.vectors)).float()
        self.sums.mul_(keep).add_(torch.zeros_like(self.sums).index_add_(0, codes, places), alpha=1 - keep)
        self.counts.mul_(keep).add_(used, alpha=1 - keep)
        moved = self.counts > 1e-3
        self.vectors[moved] = F.normalize(self.sums[moved], dim=-1)

    @torch.no_grad()
    def revive(self, places: Tensor, codes: Tensor, below: float) -> None:
        """Move some of the codes used less than ``below`` times per batch to places with a large error."""
        dead = (self.counts < below).nonzero()[:, 0]
        if len(dead):
            error = 1 - (places * self.vectors[codes]).sum(-1)
            chosen = torch.multinomial(error.clamp_min(1e-6) ** 2, min(len(dead), 8))
            dead = dead[torch.randperm(len(dead))[: len(chosen)]]
            self.vectors[dead], self.sums[dead], self.counts[dead] = places[chosen], places[chosen] * below * 4, below * 4


class PixelTraining(TrainState):
    """Training of a picture tokenizer ``net`` with its codebook on emoji art."""

    unit = "pictures"

    def __init__(self, settings: Schedule, net: Any, codebook: Codebook, fixed: str, seed: int, **buffers: Tensor) -> None:
        """Parameters with names that match ``fixed`` are frozen."""
        self.net, self.codebook, self.art, self.generator = net, codebook, emoji.load(), np.random.default_rng(seed)
        self.rows = [row for concept in self.art.part(held_out=False) for row in concept.rows.values()]
        learned = {name: value for name, value in net.named_parameters() if not re.match(fixed, name)}
        super().__init__(settings, learned, buffers=buffers)

    def encode(self, pixels: Tensor) -> Tensor:
        """The float32 unit vectors [batch, dim, row, column] of pixels [batch, rgb, row, column]."""
        return F.normalize(self.net.quant_conv(self.net.encoder(pixels)).float(), dim=1)

    def decode(self, vectors: Tensor) -> Tensor:
        """The pixels [batch, rgb, row, column] of vectors [batch, dim, row, column]."""
        return self.net.decoder(self.net.post_quant_conv(vectors)).float()

    def quantise(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of the codes nearest to unit vectors, the unit vectors as rows [place, dim], and the codes [place]."""
        last = vectors.permute(0, 2, 3, 1)
        rows = last.flatten(0, 2).detach()
        codes = self.codebook.nearest(rows)
        return self.codebook.vectors[codes].view(last.shape).permute(0, 3, 1, 2), rows, codes

    def draw(self, count: int) -> Tensor:
        """Random whole pictures over random grounds; half of the batches are mirrored."""
        rows, palette = self.generator.choice(self.rows, count), np.array(list(emoji.GROUNDS.values()))
        grounds = palette[np.where(self.generator.random(count) < 0.5, 0, self.generator.integers(0, len(palette), count))]
        free = self.generator.random(count) < 0.15
        grounds = np.where(free[:, None], self.generator.integers(0, 256, (count, 3)), grounds)
        pixels = torch.from_numpy(self.art.on(rows, grounds)).to(self.device)
        return pixels.flip(-1) if self.generator.random() < 0.5 else pixels

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The peak signal-to-noise ratio (dB) at 64 and 32 pixels on held-out concepts, a third of them on coloured grounds."""
        rows = [row for concept in self.art.part(held_out=True) for row in concept.rows.values()][:MEASURED]
        grounds = np.array(list(emoji.GROUNDS.values()))[np.arange(len(rows)) % 3 * (np.arange(len(rows)) % 2)]
        pixels, figures = torch.from_numpy(self.art.on(rows, grounds)).to(self.device), dict[str, float]()
        for name, batch in (("psnr64", pixels), ("psnr32", F.avg_pool2d(pixels, 2))):
            errors = [
                (self.decode(self.quantise(self.encode(part))[0]).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4
                for part in batch.split(34)
            ]
            figures[name] = float(-10 * torch.cat(errors).log10().mean())
        return figures


def reconstruction(drawn: Tensor, pixels: Tensor) -> Tensor:
    """The mean absolute and squared error of pixels plus the mean absolute error of neighbouring pixels' differences."""
    error = drawn - pixels
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 2 * error.square().mean() + 0.5 * edges


class VqTraining(PixelTraining):
    """Training of the tokenizer on crops and whole pictures. The checkpoint includes its codebook and the flag ``coded``."""

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        torch.manual_seed(0)
        net, self.coded, self.encoded = new_vq().to(device), torch.zeros(1), list[Tensor]()
        for name, weight in net.named_parameters():
            if name.endswith(("conv2.weight", "proj_out.weight")):
                weight.data.zero_()
        book = Codebook(F.normalize(net.quantize.embedding.weight.data, dim=-1))
        super().__init__(settings, net, book, "quantize", seed=1, coded=self.coded, **vars(book))

    def small(self) -> Tensor:
        """Pictures of 32 pixels: a third are whole pictures, shrunk, the rest are crops."""
        pixels, whole = self.draw(CROPS), CROPS // 3
        corners = self.generator.integers(0, 9, (CROPS, 2)) * 4
        crops = [pixels[place, :, y : y + 32, x : x + 32] for place, (y, x) in enumerate(corners) if place >= whole]
        return torch.cat((F.avg_pool2d(pixels[:whole], 2), torch.stack(crops)))

    def step(self, share: float) -> Step:
        """Loss and gradients of small pictures and, after 30 % of the time, also of whole ones."""
        parts = [self.small(), *([self.draw(WHOLE)] if share > 0.3 else [])]
        return self.learn(parts, lambda some: self.loss(some[0], share) * 0.5, sum(map(len, parts)))

    def loss(self, pixels: Tensor, share: float) -> Tensor:
        """The reconstruction loss, plus the distance of vectors from their codes once the codebook exists."""
        vectors = self.encode(pixels)
        if share < FREE:
            self.encoded = [*self.encoded[-300:], vectors.detach().permute(0, 2, 3, 1).flatten(0, 2)]
            return reconstruction(self.decode(F.normalize(vectors + 0.1 * torch.randn_like(vectors), dim=1)), pixels)
        if not self.coded:
            self.codebook.start(torch.cat(self.encoded)[-120_000:])
            self.encoded, self.coded[0] = [], 1
        code_vectors, rows, codes = self.quantise(vectors)
        if share < FROZEN:
            self.codebook.follow(rows, codes)
            self.codebook.revive(rows, codes, below=0.02)
        drawn = self.decode(vectors + (code_vectors - vectors).detach())
        return reconstruction(drawn, pixels) + 0.5 * (1 - (vectors * code_vectors.detach()).sum(1)).mean()

    def measure(self) -> dict[str, float]:
        return super().measure() if self.coded else {}

    def figures(self) -> dict[str, float]:
        """A milestone's figures. Raises BadInput if the time ended before the codebook was initialised."""
        if not self.coded:
            raise BadInput("The time ended before the codebook began: train for more --minutes, or continue with --resume.")
        return self.measure()

    def save(self, path: Path, card: dict[str, str]) -> None:
        vectors = self.codebook.vectors
        tensors = {**self.leaves, "quantize.embedding.weight": vectors}
        codebook = hashlib.sha256(vectors.cpu().numpy().tobytes()).hexdigest()[:16]
        write_weights(path, {PREFIX + name: value for name, value in tensors.items()}, {**card, "codebook": codebook})


class DecoderTraining(PixelTraining):
    """Further training of the shipped picture tokenizer's decoder."""

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.stored, self.card = read_weights(weights_of("image_vq"))
        net = vq_model()[0].to(device).requires_grad_(True)
        super().__init__(settings, net, Codebook(net.quantize.embedding.weight.detach()), "encoder|quant", seed=7)

    def step(self, share: float) -> Step:
        """Loss and gradients of shrunk pictures and whole ones."""
        parts = [(F.avg_pool2d(self.draw(SHRUNK), 2), 0.4), (self.draw(REDRAWN), 0.6)]

        def loss(some: Sequence[tuple[Tensor, float]]) -> Tensor:
            ((pixels, weight),) = some
            with torch.no_grad():
                vectors, _, _ = self.quantise(self.encode(pixels))
            return weight * reconstruction(self.decode(vectors), pixels)

        return self.learn(parts, loss, SHRUNK + REDRAWN)

    def spent(self) -> str:
        return f"{self.card['spent']}; the decoder {super().spent()} more"

    def save(self, path: Path, card: dict[str, str]) -> None:
        decoder = {PREFIX + name: value for name, value in self.leaves.items()}
        write_weights(path, self.stored | decoder, card | {"codebook": self.card["codebook"]})


@torch.inference_mode()
def patches(loaded: LoadedImage, codes: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return each code's mean cell [code, row, column, rgb] from -1 to 1 in the pictures ``codes`` [picture, place], and figures.

    The decoder also reads a cell's neighbours, so a code decoded alone, or in a picture of that code only, has a colour that no
    real picture has. Only a code that occurs in none of the pictures is decoded that way. ``patch`` is the root mean square
    difference (out of 255) between a cell's pixels and its code's patch.
    """
    alone = tiles(loaded).double()
    total, squares, count = torch.zeros_like(alone), torch.zeros(len(alone)).double(), torch.zeros(len(alone)).double()
    for part in codes.split(BATCH):
        pixels = loaded.model.decode_image_tokens(part.to(loaded.device)).float().clamp(-1, 1).cpu()
        split = pixels.unflatten(1, (loaded.grid, -1)).unflatten(3, (loaded.grid, -1))
        cells = split.transpose(2, 3).flatten(0, 2).double()
        total.index_add_(0, part.flatten(), cells)
        squares.index_add_(0, part.flatten(), cells.square().mean((1, 2, 3)))
        count.index_add_(0, part.flatten(), torch.ones(part.numel()).double())
    mean = torch.where((count > 0)[:, None, None, None], total / count.clamp_min(1)[:, None, None, None], alone)
    errors = squares.sum() - 2 * (total * mean).sum() / mean[0].numel() + (count * mean.square().mean((1, 2, 3))).sum()
    return mean.float(), {"unseen": float((count == 0).sum()), "patch": float((errors / count.sum()).sqrt() * 127.5)}


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_vq.safetensors`` or ``image_patches.safetensors``."""
    kinds = {"image_vq": VqTraining, "image_decoder": DecoderTraining}
    if job.recipe.name in kinds:
        return emoji.run(job, kinds[job.recipe.name])
    loaded = load_image_model("emoji-64", "float32", job.device)
    data = code_pictures(loaded.grid)
    rows = sorted(row for concept in data.part(held_out=False) for row in concept.rows.values())
    codes = torch.from_numpy(data.codes[rows]).long().flatten(0, 1)
    mean, figures = patches(loaded, codes)
    spent = f"{len(codes)} pictures, counted"
    save = lambda path, card: write_weights(path, {"patches": mean.flatten(1)}, card)  # noqa: E731
    driver.ship(job, {"pictures": len(codes)}, emoji.line(), spent, figures, save, emoji.LICENCE, codebook=data.codebook)
