"""``train image_patches``: what each picture code looks like, for the eye alone. Nothing is learned, only counted.

The decoder looks at a cell's neighbours, so a code decoded by itself, or among its like, has a colour that no picture shows.
Its patch is the mean of the cells that hold it in decoded pictures of what the image models learn from. Made again after
``image_vq`` and ``image_decoder``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafters.networks.weights import write_weights
from specviz.models.image.codebook import tiles
from specviz.models.image.image import LoadedImage, load_image_model
from specviz.training import driver
from specviz.training.families import emoji
from specviz.training.families.image_codes import coded
from specviz.training.registry import Job

BATCH = 64


@dataclass(frozen=True)
class Counting:
    """How many pictures are decoded: every drawable emoji in every style, on white and on a colour of its own."""

    pictures: int


@torch.inference_mode()
def patches(loaded: LoadedImage, codes: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Mean cell [code, row, column, rgb] from -1 to 1 of each code in the pictures ``codes`` [picture, place], and figures.

    A code in none of them is read among its like. The figures are root mean squares over all cells, of 255: how far a cell's
    pixels are from its code's patch, from that patch's one colour, and from its code among its like.
    """
    alone = tiles(loaded).double()
    total, squares, count = torch.zeros_like(alone), torch.zeros(len(alone)).double(), torch.zeros(len(alone)).double()
    for part in codes.split(BATCH):
        pixels = loaded.model.decode_image_tokens(part.to(loaded.device)).float().clamp(-1, 1).cpu()
        side = pixels.shape[1] // loaded.grid
        split = pixels.unflatten(1, (loaded.grid, side)).unflatten(3, (loaded.grid, side))
        cells = split.transpose(2, 3).flatten(0, 2).double()
        total.index_add_(0, part.flatten(), cells)
        squares.index_add_(0, part.flatten(), cells.square().mean((1, 2, 3)))
        count.index_add_(0, part.flatten(), torch.ones(part.numel()).double())
    mean = torch.where((count > 0)[:, None, None, None], total / count.clamp_min(1)[:, None, None, None], alone)

    def apart(guess: Tensor) -> float:
        errors = squares.sum() - 2 * (total * guess).sum() / guess[0].numel() + (count * guess.square().mean((1, 2, 3))).sum()
        return float((errors / count.sum()).sqrt() * 127.5)

    colour = mean.mean((1, 2), keepdim=True).expand_as(mean)
    figures = {"patch": apart(mean), "colour": apart(colour), "alone": apart(alone), "unseen": int((count == 0).sum())}
    return mean.float(), figures


def make(job: Job) -> None:
    """Count, and write ``assets/weights/image_patches.safetensors``."""
    begun = time.perf_counter()
    loaded = load_image_model("emoji-64", "float32", job.device)
    data = coded(loaded.grid)
    rows = sorted(row for concept in data.part(held_out=False) for row in concept.rows.values())
    codes = torch.from_numpy(data.codes[rows]).long().flatten(0, 1)
    mean, figures = patches(loaded, codes)
    spent = f"{(time.perf_counter() - begun) / 60:.1f} minutes, {len(codes)} pictures"
    facts = driver.card(job, Counting(len(codes)), emoji.line(), spent, figures, emoji.LICENCE, codebook=data.codebook)
    driver.ship(job, facts, lambda path, facts: write_weights(path, {"patches": mean.flatten(1)}, facts))
