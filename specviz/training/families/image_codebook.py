"""``train image_codebook``: codebook of the sprite models, real patches of 2 x 2 pixels of emoji art at 32 and at 16 pixels.

k-means on the patches of the training concepts, then the real patch nearest to each mean. A patch counts by the square root of
its frequency, so that backgrounds do not crowd out edges. Flat patches of all backgrounds are codes.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.weights import write_weights
from specviz.models.image.image import CELL
from specviz.training import driver
from specviz.training.driver import Job
from specviz.training.families import emoji
from specviz.training.families.emoji import GROUNDS, drawable, ground_of, patch_rows

CODES, ROUNDS = 256, 25
LEVELS = 24
"""Number of levels from grey to white at which two patches count as one."""
POOLS = (2, 4)
"""Pixels of the art per side of a sprite's pixel: sprites of 32 and of 16 pixels."""


def pictures(held_out: bool) -> Tensor:
    """Return the drawable pictures [picture, rgb, row, column] on white and on a colour, in turn."""
    art = emoji.load()
    rows = np.array([row for concept in art.part(held_out) if drawable(concept) for row in concept.rows.values()])
    grounds = [GROUNDS[ground] for row in rows for ground in ("white", ground_of(int(row)))]
    parts = zip(np.array_split(rows.repeat(2), 16), np.array_split(np.array(grounds), 16), strict=True)
    return torch.cat([F.avg_pool2d(torch.from_numpy(art.on(*part)), POOLS[0]) for part in parts])


def nearest(points: Tensor, codebook: Tensor) -> Tensor:
    """Return the codes [place] nearest to ``points`` [place, dim]."""
    return torch.cat([torch.cdist(part, codebook).argmin(1) for part in points.split(2**16)])


def medoids(points: Tensor, weights: Tensor, fixed: Tensor) -> Tensor:
    """Return the codebook [code, dim]: ``fixed`` [code, dim], then medoids of ``points`` [place, dim].

    ``weights``: [place].
    """
    generator = torch.Generator().manual_seed(0)
    start = points[torch.multinomial(weights, CODES - len(fixed), generator=generator)]
    codebook = torch.cat((fixed, start))
    for _ in range(ROUNDS):
        codes = nearest(points, codebook)
        sums = torch.zeros_like(codebook).index_add_(0, codes, points * weights[:, None])
        mass = torch.zeros(CODES).index_add_(0, codes, weights)
        codebook = torch.where(mass[:, None] > 0, sums / mass.clamp_min(1e-9)[:, None], codebook)
        unused = (mass == 0).nonzero()[:, 0]
        if len(unused):
            error = (points - codebook[codes]).square().sum(1) * weights
            codebook[unused] = points[torch.multinomial(error, len(unused), generator=generator)]
        codebook[: len(fixed)] = fixed
    chosen = torch.cat([torch.cdist(part, points).argmin(1) for part in codebook[len(fixed) :].split(16)])
    return torch.cat((fixed, points[chosen]))


def make(job: Job) -> None:
    """Choose the codes, measure on held-out concepts, and write ``assets/weights/image_codebook.safetensors``."""
    learned = pictures(held_out=False)
    rows = torch.cat([patch_rows(F.avg_pool2d(learned, pool // POOLS[0])).flatten(0, 1) for pool in POOLS])
    _, inverse, counts = torch.unique((rows * LEVELS).round(), dim=0, return_inverse=True, return_counts=True)
    points = torch.zeros(len(counts), rows.shape[1]).index_add_(0, inverse, rows) / counts[:, None]
    flat = (torch.tensor(list(GROUNDS.values())) / 127.5 - 1).repeat(1, CELL * CELL)
    codebook = medoids(points, counts.float().sqrt(), flat).unflatten(1, (CELL, CELL, 3)).half()
    table, metrics = codebook.float().flatten(1), dict[str, float]()
    for name, pool in zip(("psnr32", "psnr16"), POOLS, strict=True):
        own = patch_rows(F.avg_pool2d(pictures(held_out=True)[::2], pool // POOLS[0]))
        error = (table[nearest(own.flatten(0, 1), table)].view_as(own) - own).square().mean((1, 2)) / 4
        metrics[name] = float(-10 * error.log10().mean())
    number = hashlib.sha256(codebook.numpy().tobytes()).hexdigest()[:16]
    save = lambda path, card: write_weights(path, {"patches": codebook}, card)  # noqa: E731
    spent = f"{ROUNDS} rounds of k-means on {len(points)} patches"
    driver.ship(job, {"codes": CODES, "levels": LEVELS}, emoji.line(), spent, metrics, save, emoji.LICENCE, codebook=number)
