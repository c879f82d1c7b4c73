"""Pixel decoder of LlamaGen's VQ tokenizers (``vq_ds16_c2i``, ``vq_ds16_t2i``, ``vq_ds8_c2i``), from its tensors by name.

The layout is VQGAN's (Esser et al. 2021, arXiv 2012.09841): a middle, then levels of residual blocks with attention in the
deepest, each level but the last doubled in size. Codes are looked up in a codebook whose rows are brought to length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specviz.errors import ModelUnavailable

_GROUPS, _EPS = 32, 1e-6
_CODEBOOK = "quantize.embedding.weight"
_PARTS = ("decoder.", "post_quant_conv.", _CODEBOOK)
"""What drawing needs of the file; the rest is for encoding and training."""


class VQDecoder:
    """Codes to pixels. ``codebook`` [code, dim] has rows of length one; ``scale`` is how many pixels a side a code covers."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.codebook = F.normalize(tensors[_CODEBOOK], dim=-1)
        levels = {int(name.split(".")[2]) for name in tensors if name.startswith("decoder.conv_blocks.")}
        self._levels = len(levels)
        self.scale = 2 ** sum(f"decoder.conv_blocks.{level}.upsample.conv.weight" in tensors for level in levels)

    @torch.inference_mode()
    def __call__(self, codes: Tensor, grid: int) -> Tensor:
        """A picture's codes [cell] to float [row, column, rgb], about from -1 to 1."""
        x = self.codebook[codes].view(1, -1, grid, self.codebook.shape[1]).permute(0, 3, 1, 2)
        x = self._conv("decoder.conv_in", self._conv("post_quant_conv", x))
        x = self._residual("decoder.mid.0", x)
        x = self._residual("decoder.mid.2", self._attention("decoder.mid.1", x))
        for level in range(self._levels):
            x = self._level(f"decoder.conv_blocks.{level}", x)
        return self._conv("decoder.conv_out", F.silu(self._norm("decoder.norm_out", x)))[0].permute(1, 2, 0)

    def _level(self, name: str, x: Tensor) -> Tensor:
        block = 0
        while f"{name}.res.{block}.conv1.weight" in self._tensors:
            x = self._residual(f"{name}.res.{block}", x)
            if f"{name}.attn.{block}.q.weight" in self._tensors:
                x = self._attention(f"{name}.attn.{block}", x)
            block += 1
        if f"{name}.upsample.conv.weight" not in self._tensors:
            return x
        return self._conv(f"{name}.upsample.conv", F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _residual(self, name: str, x: Tensor) -> Tensor:
        inner = self._conv(f"{name}.conv1", F.silu(self._norm(f"{name}.norm1", x)))
        inner = self._conv(f"{name}.conv2", F.silu(self._norm(f"{name}.norm2", inner)))
        shortcut = f"{name}.nin_shortcut"
        return inner + (self._conv(shortcut, x) if f"{shortcut}.weight" in self._tensors else x)

    def _attention(self, name: str, x: Tensor) -> Tensor:
        """One head over all cells."""
        normed = self._norm(f"{name}.norm", x)
        queries, keys, values = (self._conv(f"{name}.{part}", normed).flatten(2).transpose(1, 2) for part in "qkv")
        attended = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).reshape(x.shape)
        return x + self._conv(f"{name}.proj_out", attended)

    def _conv(self, name: str, x: Tensor) -> Tensor:
        weight = self._tensors[f"{name}.weight"]
        return F.conv2d(x, weight, self._tensors[f"{name}.bias"], padding=weight.shape[-1] // 2)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, _GROUPS, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"], eps=_EPS)


def load_vq_decoder(file: Path, codes: int, device: torch.device) -> VQDecoder:
    """The decoder in ``file``, in float32. Raises ModelUnavailable where it is none, or not one for this many ``codes``."""
    try:
        stored = load_file(file)
        decoder = VQDecoder({name: value.to(device).float() for name, value in stored.items() if name.startswith(_PARTS)})
        decoder(torch.zeros(4, dtype=torch.long, device=device), 2)  # every tensor is there, and fits the one before it
    except (OSError, SafetensorError, KeyError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"{file} is no VQ tokenizer of LlamaGen's, or not a whole one ({str(problem)[:160]}): convert vq_ds16_c2i.pt or "
            "vq_ds16_t2i.pt into its folder."
        ) from problem
    if len(decoder.codebook) != codes:
        raise ModelUnavailable(f"{file} has {len(decoder.codebook)} codes, and the model draws with {codes}: take its own.")
    return decoder
