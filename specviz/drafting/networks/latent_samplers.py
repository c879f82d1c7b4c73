"""Upsampler and downsampler between a coarse grid of image codes and one twice as fine, causal from row to row.

Masked convolutions over code vectors, after Peruzzo et al. 2026 (arXiv 2601.05149). Row r of the coarse grid corresponds to
rows 2 r and 2 r + 1 of the fine grid. No output depends on later rows, so computed rows never change. Axis names: ``batch``,
``dim`` (of a code's vector), ``row``, ``column``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.network import Network
from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class SamplerConfig:
    """Sizes of a sampler: ``layers`` row-causal convolutions of ``width`` channels on vectors of ``dim`` numbers."""

    dim: int = 8
    width: int = 64
    layers: int = 3


class RowCausal(nn.Module):
    """3 x 3 convolution whose window ends at its own row: two rows above, none below."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(F.pad(x, (1, 1, 2, 0)))


class Sampler(nn.Module):
    """Residual row-causal convolutions on the coarse grid, which correct plain copies or means of vectors."""

    def __init__(self, inputs: int, outputs: int, config: SamplerConfig) -> None:
        super().__init__()
        self.enter = RowCausal(inputs, config.width)
        self.middle = nn.ModuleList(RowCausal(config.width, config.width) for _ in range(config.layers - 1))
        self.leave = nn.Conv2d(config.width, outputs, 1)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.middle:
            x = x + layer(F.gelu(x))
        return self.leave(F.gelu(x))


class LatentSamplers(Network):
    """Both samplers over one ``codebook`` [code, dim] with rows of unit length, which belongs to the target and is not stored."""

    title, shape = "pair of samplers", SamplerConfig
    codebook: Tensor

    def __init__(self, config: SamplerConfig, codebook: Tensor) -> None:
        super().__init__(config)
        if codebook.shape[1] != config.dim:
            raise ModelUnavailable(
                f"The samplers need codes of dimension {config.dim}, but these have {codebook.shape[1]}: choose the image "
                "model they were trained for."
            )
        self.finer = Sampler(config.dim, 4 * config.dim, config)
        self.coarser = Sampler(4 * config.dim, config.dim, config)
        self.register_buffer("codebook", codebook, persistent=False)

    def vectors(self, codes: Tensor) -> Tensor:
        """Map codes [batch, row, column] to vectors [batch, dim, row, column]."""
        return self.codebook[codes].permute(0, 3, 1, 2)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Map vectors [batch, dim, row, column] to the nearest codes [batch, row, column]."""
        return (vectors.permute(0, 2, 3, 1) @ self.codebook.T).argmax(-1)

    def fine(self, coarse: Tensor) -> Tensor:
        """Map vectors [batch, dim, row, column] to unit vectors on a grid twice as high and wide."""
        copied = coarse.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        return F.normalize(copied + F.pixel_shuffle(self.finer(coarse), 2), dim=1)

    def coarse(self, fine: Tensor) -> Tensor:
        """Map vectors [batch, dim, row, column] with an even number of rows to unit vectors on a grid half as high and wide."""
        return F.normalize(F.avg_pool2d(fine, 2) + self.coarser(F.pixel_unshuffle(fine, 2)), dim=1)

    @torch.inference_mode()
    def up(self, codes: Tensor) -> Tensor:
        """Map coarse codes [row, column], from the top, to fine codes [2 row, 2 column]."""
        return self.nearest(self.fine(self.vectors(codes[None])))[0]

    @torch.inference_mode()
    def down(self, codes: Tensor) -> Tensor:
        """Map fine codes [2 row, 2 column], from the top, to coarse codes [row, column]."""
        return self.nearest(self.coarse(self.vectors(codes[None])))[0]
