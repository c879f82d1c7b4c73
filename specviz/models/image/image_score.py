"""Image-text score: two small encoders trained to match pictures with prompts.

The score is a proxy, trained only on emoji and their names; the weights' card states its accuracy. Axis names: ``picture``,
``prompt``, ``word``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.image.prompts import PAD, WordPrompts

SIDE = 32
WIDTH = 48
SHARED = 96


class ScoreNet(nn.Module):
    """Encoders of pictures and prompts into one space of unit vectors.

    ``sharpness``: logarithm of the logit scale (the inverse temperature).
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        sizes = (3, WIDTH // 2, WIDTH, 2 * WIDTH)
        convolutions = nn.ModuleList(
            nn.Conv2d(in_channels, out_channels, 4 if number < 2 else 3, stride=2, padding=1)
            for number, (in_channels, out_channels) in enumerate(zip(sizes, sizes[1:], strict=False))
        )
        self.pictures: Any = nn.ModuleDict({"convolutions": convolutions, "leave": nn.Linear(2 * WIDTH * 16, SHARED)})
        self.words = nn.ModuleDict({
            "pieces": nn.Embedding(vocabulary, SHARED), "inner": nn.Linear(SHARED, 2 * SHARED),
            "leave": nn.Linear(2 * SHARED, SHARED),
        })  # fmt: skip
        self.sharpness = nn.Parameter(torch.tensor([2.5]))

    def of_pictures(self, pixels: Tensor) -> Tensor:
        """Unit vectors [picture, shared] of pixels [picture, rgb, 32, 32] in [-1, 1]."""
        x = pixels
        for convolution in self.pictures["convolutions"]:
            x = F.gelu(convolution(x))
        return F.normalize(self.pictures["leave"](x.flatten(1)), dim=-1)

    def of_prompts(self, words: Tensor) -> Tensor:
        """Unit vectors [prompt, shared] of word pieces [prompt, word]; special tokens are masked."""
        pieces = self.words["pieces"](words)
        mask = (words > PAD + 2).to(pieces.dtype)[..., None]
        mean = (pieces * mask).sum(1) / mask.sum(1).clamp_min(1).sqrt()
        return F.normalize(mean + self.words["leave"](F.gelu(self.words["inner"](mean))), dim=-1)

    def logits(self, pixels: Tensor, words: Tensor) -> Tensor:
        """Logits [picture, prompt]."""
        return self.of_pictures(pixels) @ self.of_prompts(words).T * self.sharpness.exp()


@dataclass(frozen=True)
class ImageScore:
    """Loaded image-text scorer."""

    net: ScoreNet
    prompts: WordPrompts

    @torch.inference_mode()
    def of(self, pictures: Sequence[np.ndarray], prompts: Sequence[str]) -> np.ndarray:
        """Cosine similarities [picture, prompt]; higher is better. ``pictures``: uint8 [row, column, 3] of any size."""
        wide = [torch.from_numpy(picture.astype(np.float32)).permute(2, 0, 1)[None] / 127.5 - 1 for picture in pictures]
        pixels = torch.cat([F.interpolate(picture, size=(SIDE, SIDE), mode="area") for picture in wide])
        words = torch.tensor([self.prompts.rows(prompt).conditional for prompt in prompts])
        return (self.net.of_pictures(pixels) @ self.net.of_prompts(words).T).numpy()


def load(path: Path) -> ImageScore:
    """Load the scorer from ``path`` in float32 on the CPU. Raises ModelUnavailable if the file holds none."""
    tensors, card = read_weights(path)
    if "prompts" not in card:
        raise ModelUnavailable(f"{path.name} holds no picture score: choose a file written by this app's training.")
    prompts = WordPrompts(card["prompts"])
    net = ScoreNet(prompts.size)
    try:
        net.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable(f"{path.name} does not hold a picture score's weights: fetch it again.") from problem
    return ImageScore(net.eval().requires_grad_(False), prompts)
