"""Codebook for display: each code's position in two dimensions, its patch of a picture, and that patch's colour."""

from __future__ import annotations

import base64

import numpy as np
import torch
from torch import Tensor

from specviz.models.image.image import LoadedImage
from specviz.trace.schema import Codebook

_FEW = 4096


def _principal_components(codebook: Tensor, count: int) -> Tensor:
    """The first ``count`` principal components [code, component] of ``codebook`` [code, dim]."""
    centred = codebook.double() - codebook.double().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # fixes the signs, which differ between machines
    return centred @ (axes * signs)[:count].T


def places(codebook: Tensor) -> np.ndarray:
    """First two principal components of ``codebook`` [code, dim], uint16 [code, 2], stretched to the whole range."""
    flat = _principal_components(codebook.cpu(), 2).numpy()
    low, high = flat.min(0), flat.max(0)
    return np.round((flat - low) / np.maximum(high - low, 1e-12) * 65535).astype("<u2")


def direction_colours(codebook: Tensor) -> Tensor:
    """Float [code, rgb] from -1 to 1: the three main directions of ``codebook`` [code, dim], each by rank."""
    ranks = _principal_components(codebook, 3).argsort(0).argsort(0)
    return (ranks.double() / max(1, len(ranks) - 1) * 2 - 1).float()


def coloured_by_direction(loaded: LoadedImage) -> bool:
    """Whether the map's colours come from directions and not from decoded codes: a CPU decodes a large codebook for minutes."""
    return loaded.codes > _FEW and loaded.device.type == "cpu"


@torch.inference_mode()
def tiles(loaded: LoadedImage) -> Tensor:
    """Decoded cell of each code among cells of the same code, float [code, row, column, rgb] from -1 to 1.

    Pictures are tiled with squares of one code each, three cells wide and read in the middle. A large codebook gets single
    cells, which are less pure but affordable. The decoder reads neighbours, so a code may look quite different in a picture:
    ``image_parts.code_patches`` has its average appearance there.
    """
    width = 3 if loaded.codes <= _FEW and loaded.grid >= 3 else 1
    squares = loaded.grid // width
    tile = (torch.arange(loaded.grid) // width).clamp_max(squares - 1)
    layout = tile[:, None] * squares + tile[None]
    middle = torch.arange(squares) * width + width // 2
    batches = []
    for start in range(0, loaded.codes, squares * squares):
        codes = (start + layout.flatten()) % loaded.codes
        picture = loaded.pixels(codes.to(loaded.device)).cpu()
        side = picture.shape[0] // loaded.grid
        cells = picture.unflatten(0, (loaded.grid, side)).unflatten(2, (loaded.grid, side)).transpose(1, 2)
        batches.append(cells[middle][:, middle].flatten(0, 1))
    return torch.cat(batches)[: loaded.codes]


def _bytes(colour: Tensor) -> bytes:
    return ((colour.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy().tobytes()


def codebook_map(loaded: LoadedImage, patches: Tensor | None = None) -> Codebook:
    """Positions, colours and, if known, ``patches`` [code, row, column, rgb] of all codes, in the trace's form."""
    if patches is None and coloured_by_direction(loaded):
        colours = direction_colours(loaded.codebook)
    else:
        colours = (tiles(loaded) if patches is None else patches).mean((1, 2))
    parts = [places(loaded.codebook).tobytes(), _bytes(colours), b"" if patches is None else _bytes(patches)]
    return Codebook(loaded.codes, *(base64.b64encode(part).decode() for part in parts))
