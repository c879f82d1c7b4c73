"""What a picture code looks like: the mean of its cells in pictures."""

from __future__ import annotations

import pytest
import torch

from specviz.models.image.codebook import tiles
from specviz.training.families.image_vq import patches
from tests.support.tiny.images import tiny_image


def test_a_patch_is_the_mean_of_the_cells_that_hold_its_code() -> None:
    loaded = tiny_image(dtype=torch.float32)
    codes = torch.randint(loaded.codes - 1, (3, loaded.cells), generator=torch.Generator().manual_seed(1))
    mean, figures = patches(loaded, codes)
    pixels = loaded.model.decode_image_tokens(codes).clamp(-1, 1)
    side = pixels.shape[1] // loaded.grid
    chosen = int(codes[0, 7])
    cells = [
        pixels[picture, row * side : (row + 1) * side, column * side : (column + 1) * side]
        for picture, place in (codes == chosen).nonzero().tolist()
        for row, column in [divmod(place, loaded.grid)]
    ]
    torch.testing.assert_close(mean[chosen], torch.stack(cells).mean(0), atol=1e-5, rtol=0)
    whole = mean[codes].unflatten(1, (loaded.grid, -1)).transpose(2, 3).reshape(pixels.shape)
    assert figures["patch"] == pytest.approx(float((whole - pixels).square().mean().sqrt() * 127.5), rel=1e-4)


def test_a_code_that_no_picture_holds_is_read_among_its_like() -> None:
    loaded = tiny_image(dtype=torch.float32)
    mean, figures = patches(loaded, torch.zeros(1, loaded.cells, dtype=torch.long))
    assert figures["unseen"] == loaded.codes - 1
    torch.testing.assert_close(mean[1:], tiles(loaded)[1:])
