"""Codebook map for the eye: each code's place in two dimensions, and the colour it paints."""

from __future__ import annotations

import base64

import numpy as np
import torch
from torch import Tensor

from specviz.models.image.image import LoadedImage
from specviz.trace.schema import Codebook

_FEW = 4096


def places(codebook: Tensor) -> np.ndarray:
    """First two principal components of ``codebook`` [code, dim], uint16 [code, 2], stretched to the whole range."""
    centred = codebook.double().cpu() - codebook.double().cpu().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # or the map would mirror from machine to machine
    flat = (centred @ (axes * signs)[:2].T).numpy()
    low, high = flat.min(0), flat.max(0)
    return np.round((flat - low) / np.maximum(high - low, 1e-12) * 65535).astype("<u2")


@torch.inference_mode()
def colours(loaded: LoadedImage) -> np.ndarray:
    """Mean colour of a cell of each code among cells of the same code, uint8 [code, 3].

    Pictures are tiled with squares of one code each, three cells wide and read in the middle; of a large codebook with
    single cells, which is less pure, and affordable.
    """
    width = 3 if loaded.codes <= _FEW and loaded.grid >= 3 else 1
    squares = loaded.grid // width
    tile = (torch.arange(loaded.grid) // width).clamp_max(squares - 1)
    layout = tile[:, None] * squares + tile[None]
    middle = torch.arange(squares) * width + width // 2
    batches = []
    for start in range(0, loaded.codes, squares * squares):
        codes = (start + layout.flatten()) % loaded.codes
        picture = loaded.model.decode_image_tokens(codes[None].to(loaded.device))[0].float().cpu()
        side = picture.shape[0] // loaded.grid
        cells = picture.unflatten(0, (loaded.grid, side)).unflatten(2, (loaded.grid, side)).mean((1, 3))
        batches.append(cells[middle][:, middle].flatten(0, 1))
    return _bytes(torch.cat(batches)[: loaded.codes])


def _bytes(colour: Tensor) -> np.ndarray:
    return ((colour.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu().numpy()


def codebook_map(loaded: LoadedImage) -> Codebook:
    """Places and colours of all codes, as the trace carries them."""
    encoded = [base64.b64encode(part.tobytes()).decode() for part in (places(loaded.codebook), colours(loaded))]
    return Codebook(loaded.codes, *encoded)
