"""Image-text score: two small encoders trained to match pictures with their prompts.

A proxy, trained on emoji and their names alone. Its card states its accuracy. Axis names: ``picture``, ``prompt``, ``word``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


class Pictures(nn.Module):
    """Pixels [picture, rgb, 32, 32] from -1 to 1 to unit vectors [picture, shared]."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, WIDTH // 2, WIDTH, 2 * WIDTH)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(in_channels, out_channels, 4 if number < 2 else 3, stride=2, padding=1)
            for number, (in_channels, out_channels) in enumerate(zip(sizes, sizes[1:], strict=False))
        )
        self.leave = nn.Linear(2 * WIDTH * 16, SHARED)

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        return F.normalize(self.leave(x.flatten(1)), dim=-1)


class Words(nn.Module):
    """Word pieces [prompt, word] to unit vectors [prompt, shared]; special tokens are masked."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.pieces = nn.Embedding(vocabulary, SHARED)
        self.inner = nn.Linear(SHARED, 2 * SHARED)
        self.leave = nn.Linear(2 * SHARED, SHARED)

    def forward(self, words: Tensor) -> Tensor:
        mask = (words > PAD + 2).to(self.pieces.weight.dtype)[..., None]
        mean = (self.pieces(words) * mask).sum(1) / mask.sum(1).clamp_min(1).sqrt()
        return F.normalize(mean + self.leave(F.gelu(self.inner(mean))), dim=-1)


class ScoreNet(nn.Module):
    """Both encoders. ``sharpness`` is the log of the logit scale (inverse temperature)."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.pictures, self.words = Pictures(), Words(vocabulary)
        self.sharpness = nn.Parameter(torch.tensor([2.5]))

    def logits(self, pixels: Tensor, words: Tensor) -> Tensor:
        """Logits [picture, prompt]."""
        return self.pictures(pixels) @ self.words(words).T * self.sharpness.exp()


@dataclass(frozen=True)
class ImageScore:
    """A loaded scorer."""

    net: ScoreNet
    prompts: WordPrompts

    @torch.inference_mode()
    def of(self, pictures: Sequence[np.ndarray], prompts: Sequence[str]) -> np.ndarray:
        """Cosine similarity of every picture (uint8 [row, column, 3], any size) to every prompt, [picture, prompt]; higher is
        better."""
        wide = [torch.from_numpy(picture.astype(np.float32)).permute(2, 0, 1)[None] / 127.5 - 1 for picture in pictures]
        pixels = torch.cat([F.interpolate(picture, size=(SIDE, SIDE), mode="area") for picture in wide])
        words = torch.tensor([self.prompts.rows(prompt).conditional for prompt in prompts])
        return (self.net.pictures(pixels) @ self.net.words(words).T).numpy()


def load(path: Path) -> ImageScore:
    """Load the scoring model from ``path``, float32 on the CPU. Raises ModelUnavailable if the file holds none."""
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
