"""The image tokenizer, transformers' ``JanusVQVAE``, with one code per 4 x 4 pixels of emoji art at 64 and at 32 pixels.

``train image_vq``: encoder, codebook and decoder, with codebook vectors of unit length. Training begins without a codebook, which
is then initialised from the encoder's outputs. ``train image_decoder``: a better decoder for the same codes, so that no other
weights need retraining. ``train image_patches``: mean pixels of each code, for display only.
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
"""Number of pictures per update, at 32 pixels and at 64 pixels."""
REDRAWN, SHRUNK = 6, 8
"""Number of pictures per update of ``image_decoder``, at 64 pixels and shrunk to 32."""
FREE = 0.12
"""Share of the time before the codebook is initialised."""
FROZEN = 0.85
"""Share of the time after which the codebook is frozen."""
MEASURED = 204
"""Maximum number of held-out pictures that are measured."""
BATCH = 64
"""Number of pictures per pass for ``image_patches``."""


class Codebook:
    """A codebook in training. ``vectors`` [code, dim]: unit length, updated in place."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors, self.sums = vectors, vectors.clone()
        self.counts = torch.ones(len(vectors), device=vectors.device)

    def nearest(self, places: Tensor) -> Tensor:
        """Return the codes [place] nearest to the vectors ``places`` [place, dim]."""
        return (places @ self.vectors.T).argmax(-1)

    @torch.no_grad()
    def start(self, places: Tensor, rounds: int = 12) -> None:
        """Initialise the codebook by k-means on the encoder's outputs ``places`` [place, dim].

        Repeated vectors, such as plain backgrounds, have less weight.
        """
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
        """Move each code towards the mean of the vectors ``places`` that were assigned to the code."""
        used = torch.bincount(codes, minlength=len(self.vectors)).float()
        self.sums.mul_(keep).add_(torch.zeros_like(self.sums).index_add_(0, codes, places), alpha=1 - keep)
        self.counts.mul_(keep).add_(used, alpha=1 - keep)
        moved = self.counts > 1e-3
        self.vectors[moved] = F.normalize(self.sums[moved], dim=-1)

    @torch.no_grad()
    def revive(self, places: Tensor, codes: Tensor, below: float) -> None:
        """Move some codes with fewer than ``below`` uses per batch to vectors of ``places`` with a large error."""
        dead = (self.counts < below).nonzero()[:, 0]
        if len(dead):
            error = 1 - (places * self.vectors[codes]).sum(-1)
            chosen = torch.multinomial(error.clamp_min(1e-6) ** 2, min(len(dead), 8))
            dead = dead[torch.randperm(len(dead))[: len(chosen)]]
            self.vectors[dead], self.sums[dead], self.counts[dead] = places[chosen], places[chosen] * below * 4, below * 4


class PixelTraining(TrainState):
    """Training of an image tokenizer ``net`` on emoji art."""

    unit = "pictures"

    def __init__(self, settings: Schedule, net: Any, codebook: Codebook, fixed: str, seed: int, **buffers: Tensor) -> None:
        """``fixed``: regular expression for the names of frozen parameters."""
        self.net, self.codebook, self.art, self.generator = net, codebook, emoji.load(), np.random.default_rng(seed)
        self.rows = [row for concept in self.art.part(held_out=False) for row in concept.rows.values()]
        learned = {name: value for name, value in net.named_parameters() if not re.match(fixed, name)}
        super().__init__(settings, learned, buffers=buffers)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return float32 unit vectors [batch, dim, row, column] of ``pixels`` [batch, rgb, row, column]."""
        return F.normalize(self.net.quant_conv(self.net.encoder(pixels)).float(), dim=1)

    def decode(self, vectors: Tensor) -> Tensor:
        """Return the pixels [batch, rgb, row, column] of ``vectors`` [batch, dim, row, column]."""
        return self.net.decoder(self.net.post_quant_conv(vectors)).float()

    def quantise(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors of the nearest codes (shape of ``vectors``), ``vectors`` as rows [place, dim], and codes [place]."""
        last = vectors.permute(0, 2, 3, 1)
        rows = last.flatten(0, 2).detach()
        codes = self.codebook.nearest(rows)
        return self.codebook.vectors[codes].view(last.shape).permute(0, 3, 1, 2), rows, codes

    def draw(self, count: int) -> Tensor:
        """Return random pictures on random backgrounds; half of the batches are mirrored."""
        rows, palette = self.generator.choice(self.rows, count), np.array(list(emoji.GROUNDS.values()))
        grounds = palette[np.where(self.generator.random(count) < 0.5, 0, self.generator.integers(0, len(palette), count))]
        free = self.generator.random(count) < 0.15
        grounds = np.where(free[:, None], self.generator.integers(0, 256, (count, 3)), grounds)
        pixels = torch.from_numpy(self.art.on(rows, grounds)).to(self.device)
        return pixels.flip(-1) if self.generator.random() < 0.5 else pixels

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return the peak signal-to-noise ratio in dB on held-out concepts, at 64 and at 32 pixels."""
        rows = [row for concept in self.art.part(held_out=True) for row in concept.rows.values()][:MEASURED]
        grounds = np.array(list(emoji.GROUNDS.values()))[np.arange(len(rows)) % 3 * (np.arange(len(rows)) % 2)]
        pixels, metrics = torch.from_numpy(self.art.on(rows, grounds)).to(self.device), dict[str, float]()
        for name, batch in (("psnr64", pixels), ("psnr32", F.avg_pool2d(pixels, 2))):
            errors = [
                (self.decode(self.quantise(self.encode(part))[0]).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4
                for part in batch.split(34)
            ]
            metrics[name] = float(-10 * torch.cat(errors).log10().mean())
        return metrics


def reconstruction(drawn: Tensor, pixels: Tensor) -> Tensor:
    """Return a weighted sum of the mean absolute and squared errors of pixels and the mean absolute error of edges."""
    error = drawn - pixels
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 2 * error.square().mean() + 0.5 * edges


class VqTraining(PixelTraining):
    """Training of the tokenizer on crops and whole pictures. ``coded``: whether the codebook has been initialised."""

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        torch.manual_seed(0)
        net, self.coded, self.encoded = new_vq().to(device), torch.zeros(1), list[Tensor]()
        for name, weight in net.named_parameters():
            if name.endswith(("conv2.weight", "proj_out.weight")):
                weight.data.zero_()
        book = Codebook(F.normalize(net.quantize.embedding.weight.data, dim=-1))
        super().__init__(settings, net, book, "quantize", seed=1, coded=self.coded, **vars(book))

    def small(self) -> Tensor:
        """Return pictures of 32 pixels: a third are shrunk, the others are crops."""
        pixels, whole = self.draw(CROPS), CROPS // 3
        corners = self.generator.integers(0, 9, (CROPS, 2)) * 4
        crops = [pixels[place, :, y : y + 32, x : x + 32] for place, (y, x) in enumerate(corners) if place >= whole]
        return torch.cat((F.avg_pool2d(pixels[:whole], 2), torch.stack(crops)))

    def step(self, share: float) -> Step:
        """Return loss and gradients of pictures of 32 pixels and, after 30 % of the time, also of 64 pixels."""
        parts = [self.small(), *([self.draw(WHOLE)] if share > 0.3 else [])]
        return self.learn(parts, lambda some: self.loss(some[0], share) * 0.5, sum(map(len, parts)))

    def loss(self, pixels: Tensor, share: float) -> Tensor:
        """Return the reconstruction loss, plus the distance of vectors from codes once the codebook exists."""
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

    def metrics(self) -> dict[str, float]:
        """Return the metrics for the card. Raises BadInput if training ended before the codebook was initialised."""
        if not self.coded:
            raise BadInput(
                "Training ended before the codebook was initialised: give a larger --minutes, or continue with --resume."
            )
        return self.measure()

    def save(self, path: Path, card: dict[str, str]) -> None:
        vectors = self.codebook.vectors
        tensors = {**self.leaves, "quantize.embedding.weight": vectors}
        codebook = hashlib.sha256(vectors.cpu().numpy().tobytes()).hexdigest()[:16]
        write_weights(path, {PREFIX + name: value for name, value in tensors.items()}, {**card, "codebook": codebook})


class DecoderTraining(PixelTraining):
    """Further training of the decoder of the shipped image tokenizer."""

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.stored, self.card = read_weights(weights_of("image_vq"))
        self.sources = {"codebook": self.card["codebook"]}
        net = vq_model()[0].to(device).requires_grad_(True)
        super().__init__(settings, net, Codebook(net.quantize.embedding.weight.detach()), "encoder|quant", seed=7)

    def step(self, share: float) -> Step:
        """Return loss and gradients of pictures of 32 and of 64 pixels."""
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
        write_weights(path, self.stored | decoder, {**card, **self.sources})


@torch.inference_mode()
def patches(loaded: LoadedImage, codes: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the mean pixels of each code [code, row, column, rgb] in the pictures ``codes`` [picture, place], and metrics.

    Pixels range from -1 to 1. Only codes that occur in no picture are decoded alone: the decoder also reads neighbours, without
    which colours are unrealistic. Metrics: ``unseen``, the number of such codes; ``patch``, the root mean square difference
    between pixels and patches, on a scale from 0 to 255.
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
    """Train, then measure on held-out concepts; or average patches. Write the weights."""
    kinds = {"image_vq": VqTraining, "image_decoder": DecoderTraining}
    if job.recipe.name in kinds:
        emoji.run(job, kinds[job.recipe.name])
        return
    loaded = load_image_model("emoji-64", "float32", job.device)
    data = code_pictures(loaded.grid)
    rows = sorted(row for concept in data.part(held_out=False) for row in concept.rows.values())
    codes = torch.from_numpy(data.codes[rows]).long().flatten(0, 1)
    mean, metrics = patches(loaded, codes)
    spent = f"averages over {len(codes)} pictures, no training"
    save = lambda path, card: write_weights(path, {"patches": mean.flatten(1)}, card)  # noqa: E731
    driver.ship(job, {"pictures": len(codes)}, emoji.line(), spent, metrics, save, emoji.LICENCE, codebook=data.codebook)
